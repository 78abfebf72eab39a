"""Messages of one size over a connection, without headers, from one process to another.

Both sides know the shapes and dtypes of a message beforehand. The writer copies a message into one
of its slots, and the bytes of the slot are what travels. The reader has as many slots. A slot of
the writer is free again when the reader has released the message. The compiled part
(`native/tcp.cpp`) moves the bytes, and says who owns a slot when.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from hocket.system.events import Closed, Event
from hocket.system.native import library
from hocket.system.network.listener import Connection
from hocket.system.ring import SPIN_NS, Spec, slot_layout, wait_for_slot
from hocket.system.shared_memory import pages

HANDED_OVER = 1 << 18
"""The size in bytes from which `receive` hands over the memory of a slot. To copy a large message,
into memory that the process does not have yet, takes as long as to receive it."""
_WATCH_NS = 200_000_000
_FIRST = 64
"""The offset of every slot in its first page. Some processors (AMD Zen 3 and 4) copy to the kernel
four times slower from an address at the beginning of a page."""


class _Memory(NamedTuple):
    """The memory of one slot."""

    memory: mmap.mmap
    offset: int

    @property
    def address(self) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(self.memory, self.offset))


class Stream:
    """One end of a stream. It can be used before there is a connection.

    stream = Stream(specs, slots=2, sends=True)
    listener().begin(address, name, 60.0, stream.attach, stream.fail)
    stream.send([observation, action])          # returns at once, also the second time
    """

    def __init__(
        self, specs: Sequence[Spec], slots: int, *, sends: bool, delay: float = 0.0
    ) -> None:
        self._library, self._sends, self._delay, self._why = library(), sends, delay, ""
        self._specs, (self._starts, self._nbytes) = specs, slot_layout(specs)
        # The time of arrival is when the last byte is here, so someone must read it then.
        pumped = not sends and delay > 0
        self._end = self._library.hocket_tcp_make(sends, slots, self._nbytes, pumped)
        stride = pages(self._nbytes)
        memory = mmap.mmap(-1, _FIRST + slots * stride)
        self._slots = [_Memory(memory, _FIRST + slot * stride) for slot in range(slots)]
        self._unused: list[_Memory] = []
        """Memory of messages whose arrays nobody has any more."""
        for slot, place in enumerate(self._slots):
            self._library.hocket_tcp_place(self._end, slot, place.address)
        self.views = [self._views(*place) for place in self._slots]
        """The arrays of each slot."""
        weakref.finalize(self, _free, self._library, self._end, self._slots)

    def attach(self, connection: Connection) -> None:
        """Give the stream its connection."""
        self._library.hocket_tcp_attach(self._end, connection.socket.detach())

    def fail(self, error: Exception) -> None:
        """Close the stream, because there is no connection."""
        self._why = str(error)
        self.close()

    def close(self) -> None:
        """End all waits at both ends, now and later, with `Closed`."""
        self._library.hocket_tcp_close(self._end)

    @property
    def is_connected(self) -> bool:
        """True from when both ends have greeted each other until either is closed."""
        return self._library.hocket_tcp_state(self._end) == 1

    @property
    def waited_ns(self) -> tuple[int, int]:
        """The nanoseconds for which the writer and the reader have waited, in this order.

        Only the number of this end is known here. The other is 0.
        """
        waited = self._library.hocket_tcp_waited_ns(self._end)
        return (waited, 0) if self._sends else (0, waited)

    def send(self, arrays: Sequence[np.ndarray], timeout: float | None = None) -> None:
        """Send a message, waiting while all slots have messages that the reader has not released.

        The bytes are copied. They travel on while the caller does other work.
        """
        for view, array in zip(self.views[0], arrays, strict=True):
            if (array.shape, array.dtype) != (view.shape, view.dtype):
                raise ValueError(
                    f"this link carries {view.dtype}{view.shape}, found {array.dtype}{array.shape}."
                )
        slot = self._wait(self._library.hocket_tcp_acquire, timeout)
        for view, array in zip(self.views[slot], arrays, strict=True):
            np.copyto(view, array, casting="no")
        self._library.hocket_tcp_publish(self._end, SPIN_NS)

    @contextmanager
    def lease(self, timeout: float | None = None) -> Iterator[list[np.ndarray]]:
        """Return a context with views of the oldest message, waiting until there is a message.

        The views are the slot itself, which the next messages may fill when the context ends.
        """
        slot = self._next(timeout)
        try:
            yield self.views[slot]
        finally:
            self._library.hocket_tcp_release(self._end)

    def receive(self, timeout: float | None = None) -> list[np.ndarray]:
        """Return the oldest message, waiting until there is one. The arrays are the caller's."""
        slot = self._next(timeout)
        if self._nbytes < HANDED_OVER:
            arrays = [np.array(view) for view in self.views[slot]]
        else:
            arrays = self._hand_over(slot)
        self._library.hocket_tcp_release(self._end)
        return arrays

    def ready(self) -> bool:
        """Return True if `lease` would not wait."""
        if not self._library.hocket_tcp_ready(self._end):
            return False
        return not self._delay or self._due() <= time.monotonic()

    def wake(self, event: Event) -> None:
        """From now on, signal `event` whenever a message arrives."""
        self._library.hocket_tcp_watch(self._end)
        threading.Thread(target=_watch, args=(weakref.ref(self), event), daemon=True).start()

    def _next(self, timeout: float | None) -> int:
        """Wait for a message, and until its delay is over. Return its slot."""
        slot = self._wait(self._library.hocket_tcp_lease, timeout)
        if self._delay:
            time.sleep(max(0.0, self._due() - time.monotonic()))
        return slot

    def _hand_over(self, slot: int) -> list[np.ndarray]:
        """Return the arrays of a leased slot with its memory, and give the slot other memory."""
        place, size = self._slots[slot], _FIRST + self._nbytes
        # All arrays are views of `owner`. When the last one is gone, the memory can be used again.
        owner = np.frombuffer(place.memory, np.uint8, self._nbytes, place.offset)
        weakref.finalize(owner, self._unused.append, place).atexit = False
        new = self._unused.pop() if self._unused else _Memory(mmap.mmap(-1, size), _FIRST)
        self._library.hocket_tcp_place(self._end, slot, new.address)
        self._slots[slot], self.views[slot] = new, self._views(*new)
        return self._views(owner, 0)

    def _views(self, buffer: Any, offset: int) -> list[np.ndarray]:
        return [
            np.ndarray(shape, dtype, buffer, offset + start)
            for (shape, dtype), start in zip(self._specs, self._starts, strict=True)
        ]

    def _due(self) -> float:
        """Return the time at which the delay of the oldest message is over."""
        return self._library.hocket_tcp_arrived_ns(self._end) / 1e9 + self._delay

    def _wait(self, call: Any, timeout: float | None) -> int:
        try:
            return wait_for_slot(call, (self._end,), timeout)
        except Closed:
            raise Closed(self._why) from None


def _watch(stream: weakref.ref[Stream], event: Event) -> None:
    """Signal `event` for every message that arrives, until the stream is closed."""
    seen = 0
    while seen >= 0 and (there := stream()):
        arrived = there._library.hocket_tcp_await(there._end, seen, _WATCH_NS)
        del there  # so that a stream that nobody else uses ends this thread
        if arrived != seen:
            event.signal()
        seen = arrived


def _free(library: Any, end: int, slots: list[_Memory]) -> None:
    """Free an end, then its slots, into which another thread may read until then."""
    library.hocket_tcp_free(end)
    slots.clear()
