"""Run programs in a separate thread, while the calling thread checks if they hang."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

LOOK_SECONDS = 0.1
"""The seconds between two checks for an overdue call."""


class WatchedThread:
    """A thread that ends with this object. If a call in it hangs, the thread is abandoned."""

    def __init__(self, name: str) -> None:
        self.hangs = False
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=_work, args=(self._tasks,), name=name, daemon=True).start()
        weakref.finalize(self, self._tasks.put, None).atexit = False

    def run(self, work: Callable[[], Any], overdue: Callable[[], BaseException | None]) -> Any:
        """Call `work` in the thread. If `overdue` returns an error meanwhile, raise that error."""
        future: Future[Any] = Future()
        self._tasks.put(lambda: fulfil(future, work))
        while not wait([future], LOOK_SECONDS).done:
            if error := overdue():
                self.hangs = True
                raise error
        return future.result()


def fulfil(future: Future[Any], work: Callable[[], Any]) -> None:
    """Call `work`, and give the future its result or its exception."""
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001 (raised by `future.result`)
        future.set_exception(error)


def _work(tasks: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (task := tasks.get()) is not None:
        task()
        del task  # otherwise its arrays would stay alive until the next task comes
