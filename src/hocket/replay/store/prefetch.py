"""A thread that draws batches while the learner computes."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

_LOOK_SECONDS = 0.1
"""Seconds after which a thread that waits checks if it should end."""


class Prefetch(Generic[T]):
    """Calls `draw` in a thread, and keeps up to `depth` of its results, in order.

    If `draw` raises an error, `get` raises it in place of the result, and the thread ends.
    """

    def __init__(self, draw: Callable[[], T], depth: int) -> None:
        self._draw = draw
        self._results: queue.Queue[T | BaseException] = queue.Queue(depth)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="prefetch", daemon=True)
        self._thread.start()

    def get(self) -> T:
        """Return the next result, or raise the error that `draw` raised."""
        while not self._ended.is_set():
            try:
                result = self._results.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                continue
            if isinstance(result, BaseException):
                self._results.put(result)  # put it back, so that later calls raise it
                raise result
            return result
        raise ValueError("nothing is drawn ahead any more, because this Prefetch was closed.")

    def close(self) -> None:
        """End the thread, and drop the results that nobody has taken."""
        self._ended.set()
        with contextlib.suppress(queue.Empty):
            while True:
                self._results.get_nowait()
        self._thread.join()

    def _work(self) -> None:
        while not self._ended.is_set():
            try:
                self._put(self._draw())
            except BaseException as error:  # noqa: BLE001 (`get` raises it)
                self._put(error)
                return

    def _put(self, result: T | BaseException) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(queue.Full):
                self._results.put(result, timeout=_LOOK_SECONDS)
                return
