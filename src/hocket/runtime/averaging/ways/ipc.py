"""Averages over processes on one GPU, each with GPU memory that all the others can read.

A kernel in each process copies its vector to the memory of that process, raises a flag, waits for
the flags of the other processes and computes the mean (`native/reduce.cu`). The host only launches
the kernel. The waiting kernels of all processes must run at the same time, so this way is only for
processes under MPS.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Sequence

from hocket.cluster.nvidia.nvrtc import NoCompiler, cubin
from hocket.errors import PlanError
from hocket.runtime.averaging import Members, Sites, Space, Unavailable
from hocket.runtime.averaging.groups import GpuGroup, InMemory, SharedMemoryWay, control_bytes
from hocket.runtime.averaging.vectors import vector_bytes
from hocket.system.native import KERNEL, checked, library
from hocket.system.network.rendezvous import Rendezvous

WAIT_SECONDS = "HOCKET_REDUCE_SECONDS"
"""The environment variable that sets the seconds for which a replica waits for another on the GPU.
Without this variable, a replica waits for 60 seconds."""

_CLOSED = 2
_HANDLE, _UUID = 64, 16


class Ipc(SharedMemoryWay):
    """The way to average between processes on one GPU, in GPU memory that all of them can read."""

    name, preference = "ipc", 10

    def note(self, members: Members) -> str:
        return "on the GPU, without the host"

    def why_not(self, members: Members) -> str:
        if members.on_host:
            return "it is for a GPU, and these replicas are on a CPU."
        if len(members.groups) > 1:
            count = len(members.groups)
            return f"it is for one GPU, and these replicas are on {count} devices."
        if not members.run_as_one:
            return (
                "replicas wait for each other on the GPU, so they must run at the same time, as "
                "slices cut by `mps` do."
            )
        if len(members) > (most := library().hocket_reduce_ipc_max_ranks()):
            return f"it takes at most {most} replicas, and these are {len(members)}."
        return super().why_not(members)

    def room(self, members: Members, sites: Sites) -> int:
        patience()  # called to refuse a wrong value of WAIT_SECONDS before anything starts
        return control_bytes(sites, len(members)) + Rendezvous.nbytes(len(members))

    def listen(
        self, members: Members, index: int, sites: Sites, space: Space | None
    ) -> InMemory[WithinGpu]:
        assert space is not None
        ordinal, delay = members.device(index).local_hardware_id, members.delay
        return InMemory(lambda: WithinGpu(space, len(members), index, sites, ordinal, delay))


class WithinGpu(GpuGroup):
    """One of `replicas` processes whose arrays are averaged on one GPU, CUDA's `ordinal`."""

    target, counter = "hocket_reduce_ipc", "hocket_reduce_ipc_counts"

    def __init__(
        self, space: Space, replicas: int, index: int, sites: Sites, ordinal: int,
        delay: float = 0.0, wait_seconds: float | None = None,
    ) -> None:  # fmt: skip
        self._ordinal, self._delay = ordinal, delay
        self._wait = wait_seconds or patience()
        super().__init__(space, replicas, index, sites)

    def check(self) -> None:
        rank = ctypes.c_int()
        code = self._library.hocket_reduce_ipc_failure(self._group, ctypes.byref(rank))
        if code == _CLOSED:
            raise RuntimeError("another replica has ended, so there is no mean")
        if code:
            raise RuntimeError(
                f"`averaged` waited {self._wait:g} s for replica {rank.value}. If that replica "
                f"is only slow, set the environment variable {WAIT_SECONDS} to more seconds"
            )

    def free(self) -> None:
        # A slot must not be freed while another process has it open. So each replica first closes
        # the slots of the others, waits until all replicas have, and then frees its own slot.
        self._library.hocket_reduce_ipc_free(self._group, 0)
        self._rendezvous.tell(b"")
        self._library.hocket_reduce_ipc_free(self._group, 1)

    def _introduction(self, sites: Sites) -> bytes:
        """Allocate this replica's slot on the GPU. Return a handle to it and the GPU's UUID."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        numbers = map(ctypes.byref, (major, minor))
        checked(self._library.hocket_cuda_capability, self._ordinal, *numbers)
        try:
            code = cubin(KERNEL, major.value, minor.value)
        except NoCompiler as error:
            raise Unavailable(str(error)) from None
        handle, uuid = ctypes.create_string_buffer(_HANDLE), ctypes.create_string_buffer(_UUID)
        make, nbytes = self._library.hocket_reduce_ipc_make, _slot_bytes(sites)
        self._group = checked(make, self._ordinal, nbytes, code, handle, uuid)
        return handle.raw + uuid.raw

    def _enter(self, introductions: Sequence[bytes]) -> None:
        if len({x[_HANDLE:] for x in introductions}) > 1:
            raise Unavailable("the replicas are not on one GPU")
        checked(
            self._library.hocket_reduce_ipc_open, self._group, self._replicas, self._index,
            b"".join(x[:_HANDLE] for x in introductions), self._compared(), self._space.address,
            int(1e9 * self._wait), int(1e9 * self._delay),
        )  # fmt: skip


AVERAGE = Ipc()


def patience() -> float:
    """Return the seconds for which a replica waits for another, read from WAIT_SECONDS."""
    text = os.environ.get(WAIT_SECONDS, "60")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise PlanError(f"{WAIT_SECONDS}={text}: use a number of seconds above 0.")
    return seconds


def _slot_bytes(sites: Sites) -> int:
    site_bytes = library().hocket_reduce_ipc_site_bytes
    regions = sum(site_bytes(nbytes) for xs in sites for nbytes in vector_bytes(xs))
    return library().hocket_reduce_ipc_header_bytes() + regions
