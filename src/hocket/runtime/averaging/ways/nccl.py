"""Means between GPUs by NCCL: one process a GPU, which is all that NCCL takes.

On CPUs, for tests, the host's memory stands in for it.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax

from hocket.runtime.averaging import Members, Sites, Space, Unavailable
from hocket.runtime.averaging.ffi import called, control_bytes
from hocket.runtime.averaging.in_memory import InMemory, without_memory
from hocket.runtime.averaging.vectors import through_vectors
from hocket.runtime.averaging.ways import shm
from hocket.runtime.averaging.ways.shm import OnHost, joined_group, registered
from hocket.system.native import checked, library
from hocket.system.rendezvous import SECONDS, Rendezvous

TARGET = "hocket_reduce_nccl"
_ID = 128


class Nccl:
    """The way, for `averaging.ways`."""

    name, preference = "nccl", 20

    def note(self, members: Members) -> str:
        return "simulated by the host's memory" if members.on_cpu else "not run on several GPUs yet"

    def why_not(self, members: Members) -> str:
        if (devices := len(members.groups)) < len(members):
            return (
                f"NCCL takes one process a device, and these are {len(members)} replicas on "
                f"{devices}."
            )
        if members.delay and not members.on_cpu:
            return "it cannot make a mean take longer, which the channel's delay asks for."
        return without_memory(members)

    def is_choice(self, members: Members) -> bool:
        return not members.on_cpu

    def room(self, members: Members, sites: Sites) -> int:
        if members.on_cpu:
            return shm.nbytes(sites, len(members))
        return control_bytes(sites, len(members)) + Rendezvous.nbytes(len(members))

    def listen(
        self, members: Members, index: int, sites: Sites, space: Space | None
    ) -> InMemory[OnHost] | InMemory[BetweenGpus]:
        if members.on_cpu:
            return shm.AVERAGE.listen(members, index, sites, space)
        assert space is not None
        ordinal = members.device(index).local_hardware_id
        return InMemory(lambda: BetweenGpus(space, len(members), index, sites, ordinal))


class BetweenGpus:
    """Averages over `replicas` processes, each on a GPU of its own: here CUDA's `ordinal`."""

    def __init__(self, space: Space, replicas: int, index: int, sites: Sites, ordinal: int) -> None:
        self._address, self._library, self._num_sites = space.address, library(), 0
        control = control_bytes(sites, replicas)
        self._rendezvous = Rendezvous(space.file, space.offset + control, replicas, index)
        with self._rendezvous.or_tell_failure():
            told = self._rendezvous.tell(new_id())  # of all, so that all know that they have NCCL
            group = joined_group(space._replace(nbytes=control), replicas, index)
            join = self._library.hocket_reduce_nccl_join
            given = ordinal, replicas, index, told[0], group, space.address
            self._group = in_time(lambda: checked(join, *given), "joining NCCL's group")
            self._rendezvous.tell(b"")
            registered(TARGET, TARGET, "CUDA")

    def __call__(self, *xs: jax.Array, root: int = -1) -> list[jax.Array]:
        def mean(flat: jax.Array) -> jax.Array:
            tag, self._num_sites = self._num_sites, self._num_sites + 1
            return called(TARGET, flat, self._group, tag, root)

        return through_vectors(mean, xs)

    def counts(self) -> tuple[int, int, int]:
        found = ctypes.c_int64(), ctypes.c_int64()
        self._library.hocket_reduce_nccl_counts(self._group, *map(ctypes.byref, found))
        return found[0].value, found[1].value, 0

    def check(self) -> None:
        if self._library.hocket_reduce_nccl_aborted(self._group):
            raise RuntimeError("another replica has ended, so there is no mean")

    def close(self) -> None:
        self._rendezvous.fail("another replica has given up")
        self._library.hocket_average_close(self._address)

    def free(self) -> None:
        """A communicator lasts as long as its process."""


AVERAGE = Nccl()


def in_time(call: Callable[[], int], what: str) -> int:
    """What a call returns that might wait for ever; then it is left to do so."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(call).result(SECONDS)
    except TimeoutError:
        raise Unavailable(f"{what} took more than {SECONDS:g} s") from None
    finally:
        pool.shutdown(wait=False)


def new_id() -> bytes:
    """An identity for a new group; with it, NCCL is loaded."""
    identity, tried = ctypes.create_string_buffer(_ID), []
    for path in _candidates():
        try:
            checked(library().hocket_reduce_nccl_id, path.encode(), identity)
        except Unavailable as error:
            tried.append(f"{path}: {error}")
        else:
            return identity.raw
    raise Unavailable(f"NCCL was not found, which `jax[cuda13]` brings ({'; '.join(tried[:3])})")


def _candidates() -> Iterator[str]:
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        yield from map(str, Path(folder).glob("nccl/lib/libnccl.so*"))
    yield "libnccl.so.2"
