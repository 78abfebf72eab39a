"""Averages arrays across GPUs by NCCL, which takes only one process for each GPU.

On CPUs, where tests run, the host's memory stands in for NCCL.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hocket.runtime.averaging import Members, Sites, Space, Unavailable
from hocket.runtime.averaging.groups import GpuGroup, InMemory, SharedMemoryWay, control_bytes
from hocket.runtime.averaging.ways import shm
from hocket.system.native import checked, library
from hocket.system.network.rendezvous import SECONDS, Rendezvous

_ID = 128


class Nccl(SharedMemoryWay):
    """The way to average between GPUs by NCCL, with one process on each GPU."""

    name, preference = "nccl", 20

    def note(self, members: Members) -> str:
        return (
            "simulated by the host's memory" if members.on_host else "not run on several GPUs yet"
        )

    def why_not(self, members: Members) -> str:
        if (devices := len(members.groups)) < len(members):
            return (
                f"NCCL takes one process per device, and these are {len(members)} replicas on "
                f"{devices}."
            )
        if members.delay and not members.on_host:
            return "it cannot make a mean take longer, as `Mean(delay=...)` asks."
        return super().why_not(members)

    def is_choice(self, members: Members) -> bool:
        return not members.on_host

    def room(self, members: Members, sites: Sites) -> int:
        if members.on_host:
            return shm.nbytes(sites, len(members))
        return control_bytes(sites, len(members)) + Rendezvous.nbytes(len(members))

    def listen(
        self, members: Members, index: int, sites: Sites, space: Space | None
    ) -> InMemory[shm.OnHost] | InMemory[BetweenGpus]:
        if members.on_host:
            return shm.AVERAGE.listen(members, index, sites, space)
        assert space is not None
        ordinal = members.device(index).local_hardware_id
        return InMemory(lambda: BetweenGpus(space, len(members), index, sites, ordinal))


class BetweenGpus(GpuGroup):
    """One of `replicas` processes that average by NCCL. It has GPU number `ordinal` to itself.

    NCCL's communicator is kept until the process ends, because compiled programs refer to it.
    """

    target, counter = "hocket_reduce_nccl", "hocket_reduce_nccl_counts"

    def __init__(self, space: Space, replicas: int, index: int, sites: Sites, ordinal: int) -> None:
        self._ordinal = ordinal
        super().__init__(space, replicas, index, sites)

    def check(self) -> None:
        if self._library.hocket_reduce_nccl_aborted(self._group):
            raise RuntimeError("another replica has ended, so there is no mean")

    def _introduction(self, sites: Sites) -> bytes:
        # Only the identity from replica 0 is used. The other replicas make one too, so that a
        # replica without NCCL fails here, and not later, while the others wait for it.
        return new_id()

    def _enter(self, introductions: Sequence[bytes]) -> None:
        join, who = self._library.hocket_reduce_nccl_join, (self._replicas, self._index)
        given = self._ordinal, *who, introductions[0], self._compared(), self._space.address
        self._group = in_time(lambda: checked(join, *given), "joining NCCL's group")


AVERAGE = Nccl()


def in_time(call: Callable[[], int], what: str) -> int:
    """Return the result of a call that may wait for ever. Abandon the call after `SECONDS`."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(call).result(SECONDS)
    except TimeoutError:
        raise Unavailable(f"{what} took more than {SECONDS:g} s") from None
    finally:
        pool.shutdown(wait=False)


def new_id() -> bytes:
    """Load NCCL, and return the unique identity that a new NCCL group needs."""
    identity, tried = ctypes.create_string_buffer(_ID), []
    for path in _candidates():
        try:
            checked(library().hocket_reduce_nccl_id, path.encode(), identity)
        except Unavailable as error:
            tried.append(f"{path}: {error}")
        else:
            return identity.raw
    raise Unavailable(f"NCCL was not found: install `jax[cuda13]` (tried {'; '.join(tried[:3])})")


def _candidates() -> Iterator[str]:
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        yield from map(str, Path(folder).glob("nccl/lib/libnccl.so*"))
    yield "libnccl.so.2"
