"""Between processes on one GPU: a message stays there, in memory that both of them see.

A ring in the host's memory says which slots are full; what is in them lies on the GPU, and the GPU
itself tells the ring (`native/slots.cpp`). So nobody waits for a message to be computed, nor for
its copies: the next program can be on its way to the GPU meanwhile.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from functools import cache, cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hocket.cluster.nvidia.cuda import gpu_uuid
from hocket.cluster.slices import device_of, read_slice
from hocket.core.plan.data import Plan
from hocket.errors import PlanError
from hocket.runtime.channels.host_arrays import host_spec, is_key, with_impl
from hocket.runtime.channels.links import Link
from hocket.system.native import Unavailable, library, said
from hocket.system.ring import Ring, slot_layout
from hocket.system.shared_memory import Arena

_FILL, _EMPTY = "hocket_slots_fill", "hocket_slots_empty"
_HANDLE = ((64,), np.dtype(np.uint8))  # to the sender's memory
SOON = 1.0
"""Seconds after which whoever waits sees to its own work first: less than counts as a deadlock."""


def stays_on_gpu(plan: Plan, link: Link) -> bool:
    """Whether what crosses here stays on a GPU: refused where it was asked for and cannot be.

    If nobody asked, between slices, and not at every step of a loop: what was not measured goes as
    it did.
    """
    asked = plan.channel_of(link.transfer).direct
    if asked is False or not link.specs:
        return False
    why = _why_not(plan, link)
    if asked and why:
        raise PlanError(f"`{link.name}` cannot be direct: {why} Leave `direct` out, or False.")
    return not why and (bool(asked) or (not link.transfer.loops and _are_slices(plan, link)))


def _why_not(plan: Plan, link: Link) -> str:
    """As far as names tell, which are the same in every process."""
    for place in (link.transfer.source, link.transfer.target):
        if place in plan.grouped or len(plan.place(place).share(0)) != 1:
            return f"`{place}` has not one device by name for each instance."
    names = _names(plan, link)
    devices = {device_of(name) for name in names}
    if len(devices) > 1 or not names[0].startswith("gpu:"):
        there = ", ".join(sorted(set(names)))
        return f"that is for two instances on one GPU, and these are on {there}."
    if any((part := read_slice(name)) and part.backend == "mig" for name in names):
        return "instances of MIG do not see each other's memory."
    if plan.channel_of(link.transfer).delay:
        return "a message with a delay waits in the host's memory."
    if gpu_uuid(0) is None:  # its number may be another in another process
        return f"{devices.pop()} is no GPU of CUDA's."
    if "microsoft" in platform.release().lower():
        return "processes cannot share memory of a GPU on WSL."
    return ""


def _names(plan: Plan, link: Link) -> list[str]:
    t = link.transfer
    ends = (t.source, link.source), (t.target, link.target)
    return [plan.place(place).share(index)[0] for place, index in ends]


def _are_slices(plan: Plan, link: Link) -> bool:
    return all(map(read_slice, _names(plan, link)))


class OnOneGpu:
    """A link of a plan whose two ends are processes on one GPU.

    The sender makes the memory when it first sends; the first message says where it lies. XLA runs
    the programs of a process in their order, so slots are filled and emptied in theirs.
    """

    def __init__(self, arena: Arena, offset: int, link: Link, device: Any = None) -> None:
        self._link, self._device = link, device
        self._stride = slot_layout([host_spec(x) for x in link.specs])[1]
        self._ring = Ring(arena.memory, offset, link.slots, [_HANDLE])
        self.last: Any = None
        """An array of the last program of this end: when it is ready, so is the message."""
        self.meanwhile: Callable[[], None] = self.settle
        """What to do when the other end keeps this one waiting: it may wait for this one's GPU."""
        self.begins: Callable[[], None] = lambda: None
        """Whom to tell that this end waits no longer: a program may have to be compiled first."""

    @staticmethod
    def nbytes(link: Link) -> int:
        """Of the host's memory."""
        return Ring.nbytes(link.slots, [_HANDLE])

    @property
    def waited(self) -> tuple[int, int]:
        return self._ring.waited_ns

    def send(self, message: list[Any]) -> None:
        slot = self._await(self._ring.free_slot)
        handle, fill = self._filling
        self._ring.views(slot)[0][:] = handle
        with jax.default_device(self._device):
            self.last = fill[slot](message)

    def receive(self) -> list[Any]:
        slot = self._await(self._ring.full_slot)
        self._theirs = self._ring.views(slot)[0].tobytes()
        found = self._taking[slot]()
        self.last = min(found, key=lambda x: x.size)  # a large one would keep its memory
        return found

    def settle(self) -> None:
        """Until the ring knows of all that this end has done; raises what failed there."""
        jax.block_until_ready(self.last)

    def empty(self) -> None:
        """Without messages again; nobody may be using it."""
        self._ring.initialise()

    def _await(self, wait: Callable[[float | None], int]) -> int:
        try:
            slot = wait(SOON)
        except TimeoutError:
            self.meanwhile()
            slot = wait(None)
        self.begins()
        return slot

    @cached_property
    def _filling(self) -> tuple[np.ndarray, list[Any]]:
        """A handle to the memory that this end sends through, and what copies into each slot."""
        handle = ctypes.create_string_buffer(_HANDLE[0][0])
        number = self._asked("hocket_slots_make", self._link.slots * self._stride, handle)

        def fill(message: list[Any], slot: int) -> jax.Array:
            plain = [jax.random.key_data(x) if is_key(x) else x for x in message]
            found = [(x.shape, x.dtype) for x in plain]
            if found != (like := [host_spec(x) for x in self._link.specs]):
                raise ValueError(f"`{self._link.name}` carries {like}, found {found}.")
            done = jax.ShapeDtypeStruct((1,), jnp.uint32)
            return self._call(_FILL, done, number, slot, plain)

        programs = [jax.jit(partial(fill, slot=k)) for k in range(self._link.slots)]
        return np.frombuffer(handle.raw, np.uint8), programs

    @cached_property
    def _taking(self) -> list[Any]:
        """What copies out of each slot of the memory that the other end sends through."""
        number = self._asked("hocket_slots_open", self._theirs)
        specs = [jax.ShapeDtypeStruct(*host_spec(x)) for x in self._link.specs]

        def take(slot: int) -> list[Any]:
            found = self._call(_EMPTY, specs, number, slot)
            pairs = zip(found, self._link.specs, strict=True)
            return [with_impl(x, like) if is_key(like) else x for x, like in pairs]

        here = jax.sharding.SingleDeviceSharding(self._device)
        programs = [partial(take, k) for k in range(self._link.slots)]
        return [jax.jit(program, out_shardings=here) for program in programs]

    def _call(self, target: str, makes: Any, number: int, slot: int, given: Any = ()) -> Any:
        where = {"slots": np.int64(number), "at": np.int64(slot * self._stride)}
        return jax.ffi.ffi_call(target, makes, has_side_effect=True)(*given, **where)

    def _asked(self, name: str, *arguments: Any) -> int:
        _register()
        call, ordinal = getattr(library(), name), self._device.local_hardware_id
        try:
            return said(call, ordinal, self._ring.address, *arguments)
        except Unavailable as error:
            raise RuntimeError(
                f"what crosses `{self._link.name}` cannot stay on the GPU: {error}. "
                f"Have it go through the host: `sliced:direct=false`, or `Channel(direct=False)`."
            ) from None


@cache
def _register() -> None:
    """Make the two functions known to XLA."""
    for name in (_FILL, _EMPTY):
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(library()[name]), platform="CUDA")
