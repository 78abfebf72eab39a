"""How a run ends when it cannot go on: with the name of whoever failed, and why."""

from __future__ import annotations

import time

import numpy as np

from hocket.core.plan.data import Plan
from hocket.runtime.observe.status import deadlock

LOOK_SECONDS = 0.2
"""How often somebody looks whether the instances go on."""
GRACE_SECONDS = 1.0
"""What the others get to come to an end after one has failed; a thread cannot be ended by force."""
PATIENCE = 5.0
"""Seconds without a message, everybody waiting, after which a run counts as stuck."""
MAX_STEP = 1.0
"""Seconds that one look counts for at most."""


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
        self._stuck, self._looked = 0.0, time.monotonic()

    def look(self) -> None:
        now, time_now = self._statuses.copy(), time.monotonic()
        # Whoever looks may have been stopped in between (Ctrl-Z): that counts as one look.
        passed, self._looked = min(time_now - self._looked, MAX_STEP), time_now
        waiting = deadlock(self._plan, self._seen, now)
        self._stuck = self._stuck + passed if waiting else 0.0
        self._seen = now
        if waiting and self._stuck > self._patience:
            raise Deadlock(waiting)
