"""Batches that are drawn in a thread while whoever learns computes."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

_LOOK_SECONDS = 0.1


class Prefetch(Generic[T]):
    """Keeps up to `depth` of what `draw` gives, in their order.

    An error of `draw` is raised where its result would have been.
    """

    def __init__(self, draw: Callable[[], T], depth: int) -> None:
        self._draw = draw
        self._found: queue.Queue[T | BaseException] = queue.Queue(depth)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="prefetch", daemon=True)
        self._thread.start()

    def get(self) -> T:
        """The next one."""
        found = None
        while found is None:
            if self._ended.is_set():
                raise ValueError("nothing is drawn ahead any more: this was closed.")
            with contextlib.suppress(queue.Empty):
                found = self._found.get(timeout=_LOOK_SECONDS)
        if isinstance(found, BaseException):
            self._found.put(found)  # for whoever asks again: nothing comes after it
            raise found
        return found

    def close(self) -> None:
        """End the thread; what it has drawn is let go."""
        self._ended.set()
        with contextlib.suppress(queue.Empty):
            while True:
                self._found.get_nowait()
        self._thread.join()

    def _work(self) -> None:
        while not self._ended.is_set():
            try:
                self._put(self._draw())
            except BaseException as error:  # noqa: BLE001 (raised by whoever asks next)
                self._put(error)
                return

    def _put(self, found: T | BaseException) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(queue.Full):
                self._found.put(found, timeout=_LOOK_SECONDS)
                return
