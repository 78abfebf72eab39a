"""The transport between processes on one GPU: messages stay there, in memory that both can see.

A ring in the host's memory says which slots are full. The messages in the slots lie on the GPU, and
the GPU itself updates the ring when it has filled or emptied a slot (`native/slots.cpp`). So the
host need not wait until a message is computed or copied before it launches the next program.
"""

from __future__ import annotations

import ctypes
import platform
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache, cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hocket.cluster.nvidia.cuda import gpu_uuid, is_gpu
from hocket.cluster.slices import read_slice
from hocket.runtime.channels import Ends, Here
from hocket.runtime.channels.host_arrays import from_host, host_spec, is_key
from hocket.runtime.channels.link_end import READER, WRITER, LinkEnd
from hocket.runtime.channels.links import Link
from hocket.system.events import Event
from hocket.system.native import Unavailable, checked, library
from hocket.system.ring import Ring, slot_layout
from hocket.system.shared_memory import MemoryFile

_FILL, _EMPTY = "hocket_slots_fill", "hocket_slots_empty"
_HANDLE = (
    (64,),
    np.dtype(np.uint8),
)  # each slot of the ring has only this: a handle that opens the sender's memory on the GPU
SOON = 1.0
"""The seconds for which an end first waits for the other end. After that, it waits until its own
device has finished its work, and then for the other end without a limit. The first wait is shorter
than the time after which a deadlock is reported."""
WATCH_SECONDS = 0.001
"""The seconds between two checks of a ring. The GPU changes a ring without giving a signal."""


class OneGpu:
    """The transport that leaves messages on the GPU, where the other process copies them.

    Unless a channel names this transport, it is used only outside of loops and between processes
    that each have a slice of the GPU. There it was measured to be faster.
    """

    preference = 20.0
    on_devices = True
    device_ordered = True

    def __init__(self) -> None:
        # The memory of a link is made once, serves all epochs, and is never freed, because compiled
        # programs refer to it by a number.
        self._ends: dict[tuple[int, bool], OnOneGpu] = {}

    def why_not(self, link: Link, ends: Ends) -> str:
        if ends.one_process or not ends.share_memory:
            return "it is for two processes that share memory."
        measured = not link.transfer.loops and all(x.slice for x in (*ends.source, *ends.target))
        if why := _why_not(link, ends):
            return why
        if link.transport or measured:
            return ""
        return "it is used only between slices and outside of loops, unless the channel names it."

    def room(self, link: Link) -> int:
        return OnOneGpu.nbytes(link)

    def listen(self, link: Link, here: Here) -> None:
        self._end(link, here).empty()

    def connect(self, link: Link, address: None, here: Here, epoch: int) -> OnOneGpu:
        end = self._end(link, here)
        end.begin(here)
        return end

    def _end(self, link: Link, here: Here) -> OnOneGpu:
        assert here.space
        key = here.space.address, here.sends
        if key not in self._ends:
            self._ends[key] = OnOneGpu(here.space.file, here.space.offset, link, here.devices[0])
        return self._ends[key]


TRANSPORT = OneGpu()


def _why_not(link: Link, ends: Ends) -> str:
    """Return why this transport cannot carry a link, or "". All processes get the same answer."""
    if not link.arrays:
        return "a message without arrays has nothing to leave on the GPU."
    for place, on in ((link.transfer.source, ends.source), (link.transfer.target, ends.target)):
        if len(on) != 1:
            return f"`{place}` must name exactly one device for each instance."
    both = [*ends.source, *ends.target]
    devices = {device.whole for device in both}
    if len(devices) > 1 or not is_gpu(both[0]):
        there = ", ".join(sorted(set(map(str, both))))
        return f"it is for two instances on one GPU, and these are on {there}."
    if any((part := read_slice(device)) and not part.way.one_memory for device in both):
        return "slices such as instances of MIG do not see each other's memory."
    if link.delay:
        return "a message with a delay waits in the host's memory, and so cannot stay on the GPU."
    # Ask about GPU 0, because processes may number this GPU differently.
    if gpu_uuid(0) is None:
        return f"{devices.pop()} is not a CUDA GPU."
    if "microsoft" in platform.release().lower():
        return "processes cannot share memory of a GPU on WSL."
    return ""


class OnOneGpu(LinkEnd[Ring]):
    """One end of a link between processes on one GPU.

    The sender allocates the memory on the GPU when it first sends. Each slot of the ring has a
    handle to that memory. XLA runs the programs of a process in the order of their launch, so slots
    are filled and emptied in order.
    """

    def __init__(self, file: MemoryFile, offset: int, link: Link, device: Any = None) -> None:
        self._ring = Ring(file.memory, offset, link.slots, [_HANDLE])
        super().__init__(self._ring)
        self._link, self._device = link, device
        self._stride = slot_layout([host_spec(x) for x in link.arrays])[1]
        self._here = Here(sends=False)
        self._last: Any = None
        self._closed = threading.Event()

    @staticmethod
    def nbytes(link: Link) -> int:
        """Return how many bytes of the host's shared memory a link needs."""
        return Ring.nbytes(link.slots, [_HANDLE])

    def begin(self, here: Here) -> None:
        """Begin anew with no message sent or received, as a run does when it loads a state."""
        self._here, self._last, self._closed = here, None, threading.Event()
        self.side, self.sent, self.taken = WRITER if here.sends else READER, 0, 0
        if here.work:
            here.work.add(self.settle)

    def send(self, arrays: Sequence[Any]) -> None:
        # A slot becomes free when the GPU has copied its message out. So this wait keeps the host
        # from running ahead of the GPU by more messages than there are slots.
        slot = self._await(self._ring.free_slot)
        handle, fill = self._filling
        self._ring.views[slot][0][:] = handle
        with jax.default_device(self._device):
            self._note(fill[slot](list(arrays)))
        self.sent += 1

    def ready(self) -> bool:
        return self._ring.messages > self.taken

    def wake(self, event: Event) -> None:
        threading.Thread(target=self._watch, args=(event, self._closed), daemon=True).start()

    def receive(self) -> list[Any]:
        slot = self._await(self._ring.full_slot)
        self._theirs = self._ring.views[slot][0].tobytes()
        arrays = self._taking[slot]()
        # Any of the arrays would do. Take the smallest, because it stays in memory until the next
        # message.
        self._note(min(arrays, key=lambda x: x.size))
        self.taken += 1
        return arrays

    def settle(self) -> None:
        """Wait until this end's last program has finished. Raise its error if it has failed."""
        jax.block_until_ready(self._last)

    def close(self) -> None:
        self._closed.set()
        super().close()

    def empty(self) -> None:
        """Drop all messages. Call only while no sender or receiver is attached."""
        self._ring.initialise()

    def _note(self, last: Any) -> None:
        """Keep an output of this end's newest program, so that `settle` can wait for it."""
        self._last = last
        if self._here.work:
            self._here.work.begun(self, last)

    def _await(self, wait: Callable[[float | None], int]) -> int:
        try:
            slot = wait(SOON)
        except TimeoutError:
            # The other end may be waiting for work of this end that the GPU has not finished.
            (self._here.work or self).settle()
            slot = wait(None)
        if self._here.work:
            self._here.work.resume()
        return slot

    def _watch(self, event: Event, closed: threading.Event) -> None:
        seen = 0
        while not closed.is_set():
            if self._ring.messages > seen:
                seen = self._ring.messages
                event.signal()
            time.sleep(WATCH_SECONDS)

    @cached_property
    def _filling(self) -> tuple[np.ndarray, list[Any]]:
        """The handle to the memory that this end sends through, and a program to fill each slot."""
        handle = ctypes.create_string_buffer(_HANDLE[0][0])
        number = self._asked("hocket_slots_make", self._link.slots * self._stride, handle)

        def fill(message: list[Any], slot: int) -> jax.Array:
            plain = [jax.random.key_data(x) if is_key(x) else x for x in message]
            specs = [(x.shape, x.dtype) for x in plain]
            if specs != (like := [host_spec(x) for x in self._link.arrays]):
                raise ValueError(f"`{self._link.name}` carries {like}, found {specs}.")
            done = jax.ShapeDtypeStruct((1,), jnp.uint32)
            return self._call(_FILL, done, number, slot, plain)

        programs = [jax.jit(partial(fill, slot=k)) for k in range(self._link.slots)]
        return np.frombuffer(handle.raw, np.uint8), programs

    @cached_property
    def _taking(self) -> list[Any]:
        """The programs that copy a message out of a slot, one for each slot."""
        number = self._asked("hocket_slots_open", self._theirs)
        specs = [jax.ShapeDtypeStruct(*host_spec(x)) for x in self._link.arrays]

        def take(slot: int) -> list[Any]:
            arrays = self._call(_EMPTY, specs, number, slot)
            pairs = zip(arrays, self._link.arrays, strict=True)
            return [from_host(x, like) for x, like in pairs]

        here = jax.sharding.SingleDeviceSharding(self._device)
        programs = [partial(take, k) for k in range(self._link.slots)]
        return [jax.jit(program, out_shardings=here) for program in programs]

    def _call(self, target: str, makes: Any, number: int, slot: int, given: Any = ()) -> Any:
        where = {"slots": np.int64(number), "at": np.int64(slot * self._stride)}
        return jax.ffi.ffi_call(target, makes, has_side_effect=True)(*given, **where)

    def _asked(self, name: str, *arguments: Any) -> int:
        """Call the library to allocate or open the link's memory on the GPU.

        Return the number by which programs refer to that memory.
        """
        _register()
        call, ordinal = getattr(library(), name), self._device.local_hardware_id
        try:
            return checked(call, ordinal, self._ring.address, *arguments)
        except Unavailable as error:
            raise RuntimeError(
                f"the messages of `{self._link.name}` cannot stay on the GPU: {error}. "
                f"Send them through the host: `sliced:direct=false`, or "
                f'`Channel(transport="shared_memory")`.'
            ) from None


@cache
def _register() -> None:
    """Register with XLA the native functions that fill and empty slots."""
    for name in (_FILL, _EMPTY):
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(library()[name]), platform="CUDA")
