"""Between processes on one GPU: a message stays there, in memory that both of them see.

The ring in the host's memory says whose turn which slot is; what is in a slot lies on the GPU
(`native/slots.cpp`). Through the host a trajectory of 50 MB would be copied four times.
"""

from __future__ import annotations

import ctypes
from functools import cache, cached_property
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
_AT = ((1,), np.dtype(np.int64))  # where in it the message lies


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

    The sender makes the memory when it first sends, and each message says where it lies.
    """

    def __init__(self, arena: Arena, offset: int, link: Link, device: Any = None) -> None:
        self._link, self._device = link, device
        self._stride = slot_layout([host_spec(x) for x in link.specs])[1]
        self._ring = Ring(arena.memory, offset, link.slots, [_HANDLE, _AT])
        self._sent = 0

    @staticmethod
    def nbytes(link: Link) -> int:
        """Of the host's memory."""
        return Ring.nbytes(link.slots, [_HANDLE, _AT])

    @property
    def waited(self) -> tuple[int, int]:
        return self._ring.waited_ns

    def send(self, message: list[Any]) -> None:
        with self._ring.fill() as (handle, at), jax.default_device(self._device):
            number, mine, fill = self._filling
            handle[:], at[0] = mine, self._sent % self._link.slots * self._stride
            library().hocket_slots_turn(number, int(at[0]))
            jax.block_until_ready(fill(message))
            self._sent += 1

    def receive(self) -> list[Any]:
        with self._ring.lease() as (handle, at):
            self._theirs = handle.tobytes()
            number, take = self._taking
            library().hocket_slots_turn(number, int(at[0]))
            return jax.block_until_ready(take())

    def empty(self) -> None:
        """Without messages again; nobody may be using it."""
        self._ring.initialise()

    @cached_property
    def _filling(self) -> tuple[int, np.ndarray, Any]:
        """The memory that this end sends through: its number, its handle, and what copies there."""
        handle = ctypes.create_string_buffer(_HANDLE[0][0])
        number = self._asked("hocket_slots_make", self._link.slots * self._stride, handle)

        def fill(message: list[Any]) -> jax.Array:
            plain = [jax.random.key_data(x) if is_key(x) else x for x in message]
            done = jax.ShapeDtypeStruct((1,), jnp.uint32)
            return _call(_FILL, done)(*plain, slots=np.int64(number))

        return number, np.frombuffer(handle.raw, np.uint8), jax.jit(fill)

    @cached_property
    def _taking(self) -> tuple[int, Any]:
        """The memory that the other end sends through, and what copies from there."""
        number = self._asked("hocket_slots_open", self._theirs)
        specs = [jax.ShapeDtypeStruct(*host_spec(x)) for x in self._link.specs]

        def take() -> list[Any]:
            found = _call(_EMPTY, specs)(slots=np.int64(number))
            pairs = zip(found, self._link.specs, strict=True)
            return [with_impl(x, like) if is_key(like) else x for x, like in pairs]

        here = jax.sharding.SingleDeviceSharding(self._device)
        return number, jax.jit(take, out_shardings=here)

    def _asked(self, name: str, *arguments: Any) -> int:
        _register()
        try:
            call = getattr(library(), name)
            return said(call, self._device.local_hardware_id, *arguments)
        except Unavailable as error:
            raise RuntimeError(
                f"what crosses `{self._link.name}` cannot stay on the GPU: {error}. "
                f"`direct=False` has it go through the host."
            ) from None


def _call(target: str, makes: Any) -> Any:
    return jax.ffi.ffi_call(target, makes, has_side_effect=True)


@cache
def _register() -> None:
    """Make the two functions known to XLA."""
    for name in (_FILL, _EMPTY):
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(library()[name]), platform="CUDA")
