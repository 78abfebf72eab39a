"""A thread in which programs run while their instance watches over them."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

LOOK_SECONDS = 0.1


class WatchedThread:
    """One thread, which lasts as long as this object; one that hangs is left behind."""

    def __init__(self, name: str) -> None:
        self.hangs = False
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=_work, args=(self._tasks,), name=name, daemon=True).start()
        weakref.finalize(self, self._tasks.put, None).atexit = False

    def run(self, work: Callable[[], Any], overdue: Callable[[], BaseException | None]) -> Any:
        """Do some work in the thread; raise an error of `overdue` as soon as there is one."""
        future: Future[Any] = Future()
        self._tasks.put(lambda: fulfil(future, work))
        while not wait([future], LOOK_SECONDS).done:
            if error := overdue():
                self.hangs = True
                raise error
        return future.result()


def fulfil(future: Future[Any], work: Callable[[], Any]) -> None:
    """Do some work, for whoever has this to ask for what it returned or raised."""
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001 (raised where it is asked for)
        future.set_exception(error)


def _work(tasks: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (task := tasks.get()) is not None:
        task()
        del task  # or it would keep alive what it has in hand, until the next one
