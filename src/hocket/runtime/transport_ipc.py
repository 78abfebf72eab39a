"""Between processes on one GPU: a message stays there, in memory that both of them see.

A ring in the host's memory says which slots are full; what is in them lies on the GPU, and the GPU
itself tells the ring (`native/slots.cpp`). So nobody waits for a message to be computed, nor for
its copies: the next program can be on its way to the GPU meanwhile.
"""

from __future__ import annotations

import ctypes
from functools import cache, cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hocket.cluster.cuda import gpu_uuid
from hocket.cluster.slices import device_of, read_slice
from hocket.core.plan import Plan
from hocket.errors import PlanError
from hocket.native import library
from hocket.runtime.arena import Arena
from hocket.runtime.control import said
from hocket.runtime.host_arrays import host_spec, is_key, with_impl
from hocket.runtime.meeting import Unavailable
from hocket.runtime.ring import Ring, slot_layout
from hocket.runtime.route import Link

_FILL, _EMPTY = "hocket_slots_fill", "hocket_slots_empty"
_HANDLE = ((64,), np.dtype(np.uint8))  # to the sender's memory


def stays_on_gpu(plan: Plan, link: Link) -> bool:
    """Whether what crosses here stays on a GPU: refused where it was asked for and cannot be."""
    channel = plan.channel_of(link.transfer)
    why = "" if channel.direct is False else _why_not(plan, link)
    if channel.direct and why:
        raise PlanError(f"`{link.name}` cannot be direct: {why} Leave `direct` out, or False.")
    return channel.direct is not False and not why


def _why_not(plan: Plan, link: Link) -> str:
    t, names = link.transfer, set[str]()
    for place, index in ((t.source, link.source), (t.target, link.target)):
        on = plan.place(place).share(index)
        if place in plan.grouped or len(on) != 1:
            return f"`{place}` has not one device by name for each instance."
        names.add(on[0])
    devices = {device_of(name) for name in names}
    if len(devices) > 1 or not (device := devices.pop()).startswith("gpu:"):
        return f"that is for two instances on one GPU, and these are on {', '.join(sorted(names))}."
    if any((part := read_slice(name)) and part.backend == "mig" for name in names):
        return "instances of MIG do not see each other's memory."
    if plan.channel_of(t).delay:
        return "a message with a delay waits in the host's memory."
    if gpu_uuid(0) is None:  # its number may be another in another process
        return f"{device} is no GPU of CUDA's."
    return ""


class OnOneGpu:
    """A link of a plan whose two ends are processes on one GPU.

    The sender makes the memory when it first sends; the first message says where it lies.
    """

    in_order = True

    def __init__(self, arena: Arena, offset: int, link: Link, device: Any = None) -> None:
        self._link, self._device = link, device
        self._stride = slot_layout([host_spec(x) for x in link.specs])[1]
        self._ring = Ring(arena.memory, offset, link.slots, [_HANDLE])
        self._last: Any = None

    @staticmethod
    def nbytes(link: Link) -> int:
        """Of the host's memory."""
        return Ring.nbytes(link.slots, [_HANDLE])

    @property
    def waited(self) -> tuple[int, int]:
        return self._ring.waited_ns

    def send(self, message: list[Any]) -> None:
        slot = self._ring.free_slot()
        handle, fill = self._filling
        self._ring.views(slot)[0][:] = handle
        with jax.default_device(self._device):
            self._last = fill[slot](message)

    def receive(self) -> list[Any]:
        slot = self._ring.full_slot()
        self._theirs = self._ring.views(slot)[0].tobytes()
        found = self._taking[slot]()
        self._last = min(found, key=lambda x: x.size)  # a large one would keep its memory
        return found

    def settle(self) -> None:
        # What is deleted was read by a program, which somebody else waits for.
        if self._last is not None and not self._last.is_deleted():
            jax.block_until_ready(self._last)

    def empty(self) -> None:
        """Without messages again; nobody may be using it."""
        self._ring.initialise()

    @cached_property
    def _filling(self) -> tuple[np.ndarray, list[Any]]:
        """A handle to the memory that this end sends through, and what copies into each slot."""
        handle = ctypes.create_string_buffer(_HANDLE[0][0])
        number = self._asked("hocket_slots_make", self._link.slots * self._stride, handle)

        def fill(message: list[Any], slot: int) -> jax.Array:
            plain = [jax.random.key_data(x) if is_key(x) else x for x in message]
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
                f"`direct=False` has it go through the host."
            ) from None


@cache
def _register() -> None:
    """Make the two functions known to XLA."""
    for name in (_FILL, _EMPTY):
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(library()[name]), platform="CUDA")
