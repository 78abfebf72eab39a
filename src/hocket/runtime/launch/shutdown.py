"""The end of a worker that nobody needs any more: at once, and on a GPU after its current program.

Processes on one GPU share more than its memory: one that is ended in the midst of its work can
take the others with it, or the server that they share.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Callable
from typing import Any

FINISH_SECONDS = 5.0
"""Seconds that a program gets to finish."""
STOP_SECONDS = 1.0
"""Seconds that the main thread gets to notice; while it waits for a message it starts nothing."""


class RunEnded(BaseException):
    """Raised in the main thread, between two of its calls: there is nobody to work for."""


class Shutdown:
    """The end of this process.

    `wake` ends the main thread's waiting for something to do. It calls `stopped` when it starts
    nothing more.
    """

    def __init__(self, wake: Callable[[], Any]) -> None:
        self.first: list[Callable[[], Any]] = []
        """Functions that end waits for others inside programs; empty where there are none."""
        self.synchronize: Callable[[], Any] | None = None
        """Until the device is idle; where there is none, this process ends in whatever it does."""
        self._wake, self._stopped = wake, threading.Event()
        self._main = threading.main_thread().ident
        self._once = threading.Lock()

    def stopped(self) -> None:
        self._stopped.set()

    def end(self) -> None:
        """End this process, from another thread than the main one. Never returns."""
        if self.synchronize is None:
            os._exit(1)
        if self._once.acquire(blocking=False):
            threading.Thread(target=self._finish, args=(self.synchronize,), daemon=True).start()
        time.sleep(FINISH_SECONDS)
        os._exit(1)

    def _finish(self, synchronize: Callable[[], Any]) -> None:
        for stop_waiting in self.first:
            stop_waiting()
        if not self._stopped.is_set():
            thread, error = ctypes.c_ulong(self._main or 0), ctypes.py_object(RunEnded)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, error)
            self._wake()  # after that: whoever wakes must find it
        self._stopped.wait(STOP_SECONDS)
        with contextlib.suppress(Exception):  # a device that has failed is idle too
            synchronize()
        os._exit(1)
