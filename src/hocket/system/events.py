"""Events: something has changed, and whoever waits looks again; or the run is over."""

from __future__ import annotations

import ctypes
import mmap
import threading
from typing import Protocol

from hocket.system.native import library

WAIT_SECONDS = 0.2
"""After which whoever waits looks again, come what may."""


class Closed(Exception):
    """The run is ending; whoever failed has the error to report."""


class Event(Protocol):
    """Something has changed: whoever waits looks again."""

    def count(self) -> int: ...

    def signal(self) -> None: ...

    def wait(self, count: int) -> None:
        """Until it was signalled since `count`, or for a short time."""


class ThreadEvent:
    """Among the threads of a process."""

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
    """Among processes, in their shared memory."""

    def __init__(self, memory: mmap.mmap, offset: int) -> None:
        self._library = library()
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
