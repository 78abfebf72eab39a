"""Events, which wake threads or processes that wait for something to change."""

from __future__ import annotations

import ctypes
import mmap
import threading
from typing import Protocol

from hocket.system.native import library

WAIT_SECONDS = 0.2
"""The seconds after which `Event.wait` returns without a signal, so that its caller looks again."""


class Closed(Exception):
    """Raised from a wait because the run is ending, perhaps after another instance failed."""


class Event(Protocol):
    """A counter of signals. A thread can wait until there is a new signal.

    To wait for a change, first read `count`, then check if the change has happened, and if not,
    call `wait(count)`. So a change between the check and the wait is not missed.
    """

    def count(self) -> int: ...

    def signal(self) -> None: ...

    def wait(self, count: int) -> None:
        """Wait until a signal has come since `count` was read, for at most WAIT_SECONDS."""


class ThreadEvent:
    """An event for threads of one process."""

    def __init__(self) -> None:
        self._changed, self._count = threading.Condition(), 0

    def count(self) -> int:
        return self._count

    def signal(self) -> None:
        with self._changed:
            self._count += 1
            self._changed.notify_all()

    def wait(self, count: int) -> None:
        with self._changed:
            if self._count == count:
                self._changed.wait(WAIT_SECONDS)


class SharedEvent:
    """An event for several processes, in memory that they share."""

    def __init__(self, memory: mmap.mmap, offset: int) -> None:
        self._library = library()
        # An address does not keep `memory` mapped. The caller must, as long as the event is used.
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(memory, offset))

    @staticmethod
    def nbytes() -> int:
        return library().hocket_event_bytes()

    def count(self) -> int:
        return self._library.hocket_event_count(self._address)

    def signal(self) -> None:
        self._library.hocket_event_signal(self._address)

    def wait(self, count: int) -> None:
        self._library.hocket_event_wait(self._address, count, int(1e9 * WAIT_SECONDS))
