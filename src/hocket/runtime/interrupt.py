"""Ctrl-C between blocks: a block that has begun is finished, so that nothing of it is lost."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Abandoned(KeyboardInterrupt):
    """The second Ctrl-C: whatever was under way is in no order, and not to be kept."""


class Deferred:
    """A context in which the first Ctrl-C is only noted, in `seen`; a second one acts at once."""

    def __init__(self) -> None:
        self.seen = False
        self._before: Any = None

    def __enter__(self) -> Deferred:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.seen:
            raise Abandoned
        self.seen = True
