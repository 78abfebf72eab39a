"""A channel between two instances of one process."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any


class Closed(Exception):
    """The other side has failed; its own error is the one to report."""


class Pipe:
    """One transfer's way from one instance to another: a bounded queue that counts its bytes."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._messages: deque[list[Any]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self.nbytes = 0
        self.messages = 0
        self.waited = 0.0
        """Seconds for which either side waited for the other."""

    def send(self, message: list[Any]) -> None:
        """Hand over a message, waiting while the channel is full."""
        with self._changed:
            self._wait(lambda: len(self._messages) < self._capacity)
            self._messages.append(message)
            self.messages += 1
            self.nbytes += sum(x.size * x.dtype.itemsize for x in message)
            self._changed.notify_all()

    def receive(self) -> list[Any]:
        """Take the oldest message, waiting until there is one."""
        with self._changed:
            self._wait(lambda: bool(self._messages))
            message = self._messages.popleft()
            self._changed.notify_all()
            return message

    def close(self) -> None:
        """Wake whoever waits, with `Closed`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _wait(self, ready: Any) -> None:
        start = time.perf_counter()
        self._changed.wait_for(lambda: self._closed or ready())
        self.waited += time.perf_counter() - start
        if self._closed:
            raise Closed
