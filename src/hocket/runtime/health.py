"""How a run ends when it cannot go on: with the name of whoever failed, and why."""

from __future__ import annotations

import time

import numpy as np

from hocket.core.plan import Plan
from hocket.runtime.status import deadlock

PATIENCE = 5.0
"""Seconds without a message, everybody waiting, after which a run counts as stuck."""


class InstanceError(RuntimeError):
    """An instance failed; the message begins with its name and its traceback."""


class Deadlock(RuntimeError):
    """Instances wait for each other; the message says who for whom."""


class Watch:
    """Looks at the instances of a run now and then, and raises `Deadlock` where none can go on."""

    def __init__(self, plan: Plan, statuses: np.ndarray) -> None:
        self._plan, self._statuses = plan, statuses
        slowest = max((channel.delay for channel in plan.channels.values()), default=0.0)
        self._patience = PATIENCE + slowest
        self._seen = statuses.copy()
        self._since = time.monotonic()

    def look(self) -> None:
        now = self._statuses.copy()
        stuck = deadlock(self._plan, self._seen, now)
        if stuck is None:
            self._seen, self._since = now, time.monotonic()
        elif time.monotonic() - self._since > self._patience:
            raise Deadlock(stuck)
