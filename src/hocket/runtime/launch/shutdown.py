"""The end of a worker that is no longer needed: at once, but on a GPU after its current program.

Processes that share a GPU also share faults. One that ends in the middle of a program can bring
down the others, or the server of MPS that they share.
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
"""Seconds that the current program has to finish before the process ends anyway."""
STOP_SECONDS = 1.0
"""Seconds that the main thread has to notice the end. If it takes longer, it must be waiting for a
message, and so it will start nothing on the device."""


class RunEnded(BaseException):
    """The run is over.

    Another thread raises this in the main thread, where it takes effect when that thread next runs
    Python code.
    """


class Shutdown:
    """The orderly end of this process.

    `wake` has to wake a main thread that waits for a command. The main thread calls `stopped` when
    it will start nothing more on the device.
    """

    def __init__(self, wake: Callable[[], Any]) -> None:
        self.first: list[Callable[[], Any]] = []
        """Functions that `end` calls first, so that no program waits for another process."""
        self.synchronize: Callable[[], Any] | None = None
        """A function that waits until the device is idle; None to end this process at once."""
        self._wake, self._stopped = wake, threading.Event()
        self._main = threading.main_thread().ident
        self._once = threading.Lock()

    def stopped(self) -> None:
        self._stopped.set()

    def end(self) -> None:
        """End this process. Called by any thread but the main one; never returns."""
        # `os._exit`, since nothing else ends the process while the main thread may be in a program.
        if self.synchronize is None:
            os._exit(1)
        # Another thread waits for the device, so that this one can end the process in time.
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
            self._wake()  # not earlier: the main thread must find the exception when it wakes
        self._stopped.wait(STOP_SECONDS)
        with contextlib.suppress(Exception):  # a device that has failed is idle too
            synchronize()
        os._exit(1)
