"""Ctrl-C, made to take effect between blocks of iterations, so that no finished work is lost.

After `heed_termination`, SIGTERM acts like Ctrl-C. Schedulers and containers send SIGTERM when the
time of a job is up.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class Abandoned(KeyboardInterrupt):
    """Raised when a second Ctrl-C interrupts unfinished work. After that, do not use the state."""


def heed_termination() -> None:
    """Let SIGTERM act like Ctrl-C. Otherwise SIGTERM ends the process at once."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)


class Suspension:
    """Functions to call before Ctrl-Z suspends this process, and when it goes on.

    They are called with True and with False, in a thread. The first `add` takes over the signal of
    Ctrl-Z, unless the program already handles it, or the caller is not the main thread.
    """

    def __init__(self) -> None:
        self._functions: set[Callable[[bool], None]] = set()
        self._process = os.getpid()
        self._begun, self._suspending = False, threading.Lock()

    def add(self, function: Callable[[bool], None]) -> None:
        self._functions.add(function)
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:
            signal.signal(signal.SIGTSTP, self._begin)

    def discard(self, function: Callable[[bool], None]) -> None:
        self._functions.discard(function)

    def _begin(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a fork, which must not speak for this process
            signal.raise_signal(signal.SIGSTOP)
        elif not self._begun:
            # In a thread, since the functions may wait for a lock that the main thread has now.
            self._begun = True
            threading.Thread(target=self._suspend, daemon=True).start()

    def _suspend(self) -> None:
        with self._suspending:
            for function in list(self._functions):
                function(True)
            self._begun = False
            # To this thread, which then does nothing more before the whole process has stopped.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
            for function in list(self._functions):  # `fg` continues here
                function(False)


SUSPENSION = Suspension()


class Deferred:
    """A context in which the first Ctrl-C only sets `seen`, and the second raises `Abandoned`."""

    def __init__(self) -> None:
        self.seen = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Deferred:
        if threading.current_thread() is threading.main_thread():
            numbers = [signal.SIGINT]
            if signal.getsignal(signal.SIGTERM) is signal.default_int_handler:
                numbers.append(signal.SIGTERM)
            self._before = {number: signal.signal(number, self._note) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.seen:
            raise Abandoned
        self.seen = True
