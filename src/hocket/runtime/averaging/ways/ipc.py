"""Means on one GPU, between processes: each has memory there that all others see.

A kernel of each process copies its vector to its own memory, raises a flag, waits for the flags of
the others and takes the mean (`native/reduce.cu`): the host only launches it. A kernel that waits
needs the others to run at the same time, so this is for processes under MPS.
"""

from __future__ import annotations

import ctypes
import math
import os

import jax

from hocket.cluster.nvidia.nvrtc import NoCompiler, cubin
from hocket.errors import PlanError
from hocket.runtime.averaging import Members, Sites, Space, Unavailable
from hocket.runtime.averaging.ffi import called, control_bytes
from hocket.runtime.averaging.in_memory import InMemory, without_memory
from hocket.runtime.averaging.vectors import through_vectors, vector_bytes
from hocket.runtime.averaging.ways.shm import joined_group, registered
from hocket.system.native import KERNEL, checked, library
from hocket.system.rendezvous import Rendezvous

TARGET = "hocket_reduce_ipc"
WAIT_SECONDS = "HOCKET_REDUCE_SECONDS"
"""For how long a replica waits on the GPU for another before the run fails; by default 60."""

_CLOSED = 2
_HANDLE, _UUID = 64, 16


class Ipc:
    """The way, for `averaging.ways`."""

    name, preference = "ipc", 10

    def note(self, members: Members) -> str:
        return "on the GPU, without the host"

    def why_not(self, members: Members) -> str:
        if members.on_cpu:
            return "it is for a GPU, and these replicas are on a CPU."
        if len(members.groups) > 1:
            count = len(members.groups)
            return f"it is within one GPU, and these replicas are on {count} devices."
        if members.backends != {"mps"}:
            return (
                "replicas wait for each other on the GPU, so they must run at the same time: as "
                "slices cut by `mps`."
            )
        if len(members) > (most := library().hocket_reduce_ipc_max_ranks()):
            return f"{len(members)} replicas are more than {most}."
        return without_memory(members)

    def is_choice(self, members: Members) -> bool:
        return True

    def room(self, members: Members, sites: Sites) -> int:
        patience()  # refused before anything starts
        return control_bytes(sites, len(members)) + Rendezvous.nbytes(len(members))

    def listen(
        self, members: Members, index: int, sites: Sites, space: Space | None
    ) -> InMemory[OnOneGpu]:
        assert space is not None
        ordinal, delay = members.device(index).local_hardware_id, members.delay
        return InMemory(lambda: OnOneGpu(space, len(members), index, sites, ordinal, delay))


class OnOneGpu:
    """Averages over `replicas` processes on the GPU that CUDA knows as number `ordinal`."""

    def __init__(
        self, space: Space, replicas: int, index: int, sites: Sites, ordinal: int,
        delay: float = 0.0, wait_seconds: float | None = None,
    ) -> None:  # fmt: skip
        self._address, self._index, self._num_sites = space.address, index, 0
        self._wait = wait_seconds or patience()
        self._library = library()
        control = control_bytes(sites, replicas)
        self._rendezvous = Rendezvous(space.file, space.offset + control, replicas, index)
        with self._rendezvous.or_tell_failure():
            handle, uuid = self._make(ordinal, sites)
            told = self._rendezvous.tell(handle + uuid)
            if len({x[_HANDLE:] for x in told}) > 1:
                raise Unavailable("the replicas are not on one GPU")
            group = joined_group(space._replace(nbytes=control), replicas, index)
            checked(
                self._library.hocket_reduce_ipc_open, self._group, replicas, index,
                b"".join(x[:_HANDLE] for x in told), group, space.address,
                int(1e9 * self._wait), int(1e9 * delay),
            )  # fmt: skip
            self._rendezvous.tell(b"")  # now all have opened each other's memory
            registered(TARGET, TARGET, "CUDA")

    def __call__(self, *xs: jax.Array, root: int = -1) -> list[jax.Array]:
        def mean(flat: jax.Array) -> jax.Array:
            tag, self._num_sites = self._num_sites, self._num_sites + 1
            return called(TARGET, flat, self._group, tag, root)

        return through_vectors(mean, xs)

    def counts(self) -> tuple[int, int, int]:
        found = ctypes.c_int64(), ctypes.c_int64(), ctypes.c_int64()
        self._library.hocket_reduce_ipc_counts(self._group, *map(ctypes.byref, found))
        calls, nbytes, waited = (count.value for count in found)
        return calls, nbytes, waited

    def check(self) -> None:
        rank = ctypes.c_int()
        code = self._library.hocket_reduce_ipc_failure(self._group, ctypes.byref(rank))
        if code == _CLOSED:
            raise RuntimeError("another replica has ended, so there is no mean")
        if code:
            raise RuntimeError(f"`averaged` waited {self._wait:g} s for replica {rank.value}")

    def close(self) -> None:
        self._rendezvous.fail("another replica has given up")
        self._library.hocket_average_close(self._address)

    def free(self) -> None:
        self._library.hocket_reduce_ipc_free(self._group, 0)
        self._rendezvous.tell(b"")  # nobody looks into another's memory any more
        self._library.hocket_reduce_ipc_free(self._group, 1)

    def _make(self, ordinal: int, sites: Sites) -> tuple[bytes, bytes]:
        """This replica's memory on the GPU: its handle, and which GPU that is."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        checked(
            self._library.hocket_cuda_capability, ordinal, ctypes.byref(major), ctypes.byref(minor)
        )
        try:
            code = cubin(KERNEL, major.value, minor.value)
        except NoCompiler as error:
            raise Unavailable(str(error)) from None
        handle, uuid = ctypes.create_string_buffer(_HANDLE), ctypes.create_string_buffer(_UUID)
        make, nbytes = self._library.hocket_reduce_ipc_make, _slot_bytes(sites)
        self._group = checked(make, ordinal, nbytes, code, handle, uuid)
        return handle.raw, uuid.raw


AVERAGE = Ipc()


def patience() -> float:
    """For how many seconds a replica waits for another."""
    text = os.environ.get(WAIT_SECONDS, "60")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise PlanError(f"{WAIT_SECONDS}={text}: that is no number of seconds above 0.")
    return seconds


def _slot_bytes(sites: Sites) -> int:
    sizes = [n for xs in sites for n in vector_bytes(xs)]
    each = map(library().hocket_reduce_ipc_site_bytes, sizes)
    return library().hocket_reduce_ipc_header_bytes() + sum(each)
