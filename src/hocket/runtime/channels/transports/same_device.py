"""Between instances on one device: the arrays themselves are handed over, and nothing is copied."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

from hocket.system.events import Closed


class SameDevice:
    """A bounded queue. A sent buffer is never donated, so both ends may hold it."""

    def __init__(self, capacity: int, delay: float = 0.0) -> None:
        self.capacity, self._delay = capacity, delay
        self._messages: deque[tuple[float, list[Any]]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._waited = [0, 0]

    @property
    def waited(self) -> tuple[int, int]:
        return self._waited[0], self._waited[1]

    @property
    def has_message(self) -> bool:
        return self._arrived()

    def send(self, message: list[Any]) -> None:
        with self._changed:
            self._wait(0, lambda: len(self._messages) < self.capacity)
            self._messages.append((time.perf_counter() + self._delay, message))
            self._changed.notify_all()

    def receive(self) -> list[Any]:
        with self._changed:
            self._wait(1, self._arrived)
            _, message = self._messages.popleft()
            self._changed.notify_all()
            return message

    def close(self) -> None:
        """Wake whoever waits, with `Closed`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _arrived(self) -> bool:
        return bool(self._messages) and (
            not self._delay or self._messages[0][0] <= time.perf_counter()
        )

    def _wait(self, side: int, ready: Any) -> None:
        start = time.perf_counter_ns()
        while not self._closed and not ready():
            left = self._messages[0][0] - time.perf_counter() if side and self._messages else None
            self._changed.wait(left if left is None else max(left, 0.0))
        self._waited[side] += time.perf_counter_ns() - start
        if self._closed:
            raise Closed
