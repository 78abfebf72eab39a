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
from typing import Any

import numpy as np

from hocket.system.events import Closed, Event
from hocket.system.native import library
from hocket.system.network.listener import Connection
from hocket.system.ring import SPIN_NS, Spec, slot_layout, wait_for_slot
from hocket.system.shared_memory import pages

_WATCH_NS = 200_000_000
_FIRST = 64
"""The offset of every slot in its first page. Some processors (AMD Zen 3 and 4) copy to the kernel
four times slower from an address at the beginning of a page."""


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
        starts, nbytes = slot_layout(specs)
        stride = pages(nbytes)
        memory = mmap.mmap(-1, _FIRST + slots * stride)
        self.views: list[list[np.ndarray]] = [
            [
                np.ndarray(shape, dtype, buffer=memory, offset=_FIRST + slot * stride + start)
                for (shape, dtype), start in zip(specs, starts, strict=True)
            ]
            for slot in range(slots)
        ]
        """The arrays of each slot."""
        at = ctypes.addressof(ctypes.c_char.from_buffer(memory, _FIRST))
        # The time of arrival is when the last byte is here, so someone must read it then.
        pumped = not sends and delay > 0
        self._end = self._library.hocket_tcp_make(sends, slots, nbytes, at, stride, pumped)
        weakref.finalize(self, _free, self._library, self._end, memory)

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
        slot = self._wait(self._library.hocket_tcp_lease, timeout)
        try:
            if self._delay:
                time.sleep(max(0.0, self._due() - time.monotonic()))
            yield self.views[slot]
        finally:
            self._library.hocket_tcp_release(self._end)

    def ready(self) -> bool:
        """Return True if `lease` would not wait."""
        if not self._library.hocket_tcp_ready(self._end):
            return False
        return not self._delay or self._due() <= time.monotonic()

    def wake(self, event: Event) -> None:
        """From now on, signal `event` whenever a message arrives."""
        self._library.hocket_tcp_watch(self._end)
        threading.Thread(target=_watch, args=(weakref.ref(self), event), daemon=True).start()

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


def _free(library: Any, end: int, memory: mmap.mmap) -> None:
    """Free an end, then its memory, into which another thread may read until then."""
    library.hocket_tcp_free(end)
    del memory
