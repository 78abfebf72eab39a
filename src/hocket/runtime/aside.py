"""A thread in which programs run while their instance watches over them."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any

LOOK_SECONDS = 0.1


class Aside:
    """One thread, which lasts as long as this object; one that hangs is left behind."""

    def __init__(self, name: str) -> None:
        self.hangs = False
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=_work, args=(self._tasks,), name=name, daemon=True).start()
        weakref.finalize(self, self._tasks.put, None).atexit = False

    def run(self, work: Callable[[], Any], overdue: Callable[[], BaseException | None]) -> Any:
        """What `work` returns or raises; or, as soon as there is such, what `overdue` says."""
        found: list[Any] = []
        failures: list[BaseException] = []
        done = threading.Event()

        def task() -> None:
            try:
                found.append(work())
            except BaseException as error:  # noqa: BLE001 (raised by whoever waits)
                failures.append(error)
            finally:
                done.set()

        self._tasks.put(task)
        while not done.wait(LOOK_SECONDS):
            if error := overdue():
                self.hangs = True
                raise error
        if failures:
            raise failures[0]
        return found[0]


def _work(tasks: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (task := tasks.get()) is not None:
        task()
        del task  # or it would keep alive what it has in hand, until the next one
