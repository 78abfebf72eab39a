"""Ctrl-C between blocks: a block that has begun is finished, so that nothing of it is lost.

Where it is heeded, SIGTERM is the same: it is how schedulers and containers say that time is up.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Abandoned(KeyboardInterrupt):
    """The second Ctrl-C: whatever was under way is in no order, and not to be kept."""


def heed_termination() -> None:
    """Let SIGTERM be as Ctrl-C for this process; by default it ends it at once."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)


class Deferred:
    """A context in which the first Ctrl-C is only noted, in `seen`; a second one acts at once."""

    def __init__(self) -> None:
        self.seen = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Deferred:
        if threading.current_thread() is threading.main_thread():
            heeded = [signal.SIGINT]
            if signal.getsignal(signal.SIGTERM) is signal.default_int_handler:
                heeded.append(signal.SIGTERM)
            self._before = {number: signal.signal(number, self._note) for number in heeded}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.seen:
            raise Abandoned
        self.seen = True
