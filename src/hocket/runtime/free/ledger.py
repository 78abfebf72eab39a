"""The ledger of a free plan: who is making which sample, and with which version.

Each maker may have `window` samples that it has begun and the learner has not taken. The ledger
holds the version of the parameters with which each of them is made. The learner takes the samples
that are ready, oldest version first. But it waits if taking them would leave another sample, which
is still being made, too old when its turn comes. So every sample is learned from, at most `max_age`
versions after the version it was made with.

An iteration of the learner takes `batch` samples at once, the oldest that are ready. If makers may
have several samples waiting, two of one batch can come from the same maker, so that a fast maker
need not wait for slow ones.

At most `window` x makers samples exist at once, and that is at most `max_age` x `batch`. So a new
sample, which is made with the newest version, is in time even if it is taken after all others.
Nobody waits for ever: a maker with room begins, so the samples that the learner needs are made. If
the learner waits for an unfinished sample, its maker and helpers finish it without the learner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hocket.core.plan.data import Plan
from hocket.runtime.observe.status import names
from hocket.system.events import Closed, Event

NONE = -1
"""The number that stands for no version, before the first is published."""


def helpers(plan: Plan) -> list[tuple[str, int]]:
    """Return the instances that compute parts of samples for the maker, as (place, index).

    Only a plan with a single maker has any.
    """
    assert plan.free
    pair = plan.free.learner, plan.free.maker
    return [(place, index) for place, index in names(plan) if place not in pair]


def ledger_dtype(plan: Plan) -> np.dtype[Any]:
    """Return the layout of the numbers that all instances of a free plan share."""
    assert plan.free
    makers, window = plan.free.makers, plan.free.window
    return np.dtype([
        ("stop", "i8"),  # makers begin no further sample
        ("closed", "i8"),  # the run is over
        ("version", "i8"),  # the newest version published: the learner's iteration
        ("loaded", "i8", (makers,)),  # samples from a checkpoint, which count as begun and made
        ("begun", "i8", (makers,)),  # samples that each maker has begun
        ("made", "i8", (makers,)),  # samples that each maker has finished
        ("taken", "i8", (makers,)),  # samples of each maker that the learner has taken
        ("helped", "i8", (max(1, len(helpers(plan))),)),  # iterations that each helper has finished
        ("stopped", "i8", (makers,)),  # 1 once the maker has seen `stop`
        ("made_with", "i8", (makers, window)),  # the versions of samples that are not taken yet
    ])  # fmt: skip


class Ledger:
    """The numbers that makers, helpers and the learner share, and what each may do next.

    There is no lock. While instances work, each number is one word with one writer: makers and
    helpers write their own entries, the learner writes `version` and `taken`, and the run writes
    `stop` and `closed`. A reader that looks too early waits for the next signal and looks again.
    Where the order of writes and reads matters, a comment says so.
    """

    def __init__(self, plan: Plan, event: Event, numbers: np.ndarray | None = None) -> None:
        assert plan.free
        self.window, self.makers, self.helpers = plan.free.window, plan.free.makers, helpers(plan)
        self.max_age, self.batch = plan.free.max_age, plan.free.batch
        self.numbers = np.zeros((), ledger_dtype(plan)) if numbers is None else numbers
        self.event = event
        if numbers is None:
            self.clear()

    def clear(self) -> None:
        """Forget all samples and versions. Call only while nobody uses the ledger."""
        self.numbers[...] = np.zeros((), self.numbers.dtype)
        self.numbers["version"] = NONE

    def wait(self, ready: Callable[[], bool]) -> None:
        """Wait until `ready` returns True. Raise `Closed` if the run ends first."""
        while True:
            # Counted before `ready` looks, so that a signal that comes after ends the wait below.
            count = self.event.count()
            if self.numbers["closed"]:
                raise Closed
            if ready():
                return
            self.event.wait(count)

    # Makers of samples and their helpers call these methods.

    def may_begin(self, maker: int) -> bool:
        """Return True if a maker's wait is over: it has room for a new sample, or has to stop."""
        n = self.numbers
        room = n["begun"][maker] - n["taken"][maker] < self.window
        return bool(n["stop"] or (room and n["version"] != NONE))

    def begin(self, maker: int) -> bool:
        """Announce a new sample, and return True. If makers have to stop, return False instead.

        The sample is announced with the version that is newest now. Only then does the maker read
        the parameters, whose version may be newer, but not older. The learner publishes a version,
        and only then reads the announcements. Both signal an event between their two steps, and
        that is a memory fence. So either the maker reads the new version, or the learner sees the
        announcement, and does not let the sample get too old.
        """
        n = self.numbers
        if n["stop"]:
            self._write("stopped", 1, maker)
            return False
        # The version is written first: readers look at it as soon as `begun` has grown.
        n["made_with"][maker, n["begun"][maker] % self.window] = n["version"]
        self._write("begun", n["begun"][maker] + 1, maker)
        return True

    def made_with(self, maker: int, version: int) -> None:
        """Record the version that a maker's last sample uses, which may be newer than announced."""
        slot = (self.numbers["begun"][maker] - 1) % self.window
        self._write("made_with", version, (maker, slot))

    def end(self, maker: int) -> None:
        """Count a sample as made."""
        self._write("made", self.numbers["made"][maker] + 1, maker)

    def help(self, place: str, index: int) -> None:
        """Count an iteration that a helper has finished."""
        helper = self.helpers.index((place, index))
        self._write("helped", self.numbers["helped"][helper] + 1, helper)

    def led(self) -> int:
        """Return how many samples maker 0 has begun since the last load.

        Each helper may begin that many iterations.
        """
        return int(self.numbers["begun"][0] - self.numbers["loaded"][0])

    # The learner calls these methods.

    def publish(self, version: int) -> None:
        """Let makers begin samples with this version."""
        self._write("version", version)

    def choice(self) -> list[int] | None:
        """Return the makers of the samples to learn from now, or None if the learner must wait.

        It must wait if fewer than `batch` samples are ready. It must also wait if taking these
        would leave another sample, ready or not, too old when its turn comes.
        """
        n = self.numbers
        taken, begun, made = n["taken"], n["begun"], n["made"]
        # Samples are sorted by (version, position, maker). A maker's oldest is at 0, so among
        # samples of one version, every maker's first comes before any maker's second.
        samples = sorted(
            (int(n["made_with"][maker, k % self.window]), k - taken[maker], maker)
            for maker in range(self.makers)
            for k in range(taken[maker], begun[maker])
        )
        if self.helpers:  # a sample is ready only when all helpers have finished their parts
            made = np.minimum(made, n["helped"].min() + n["loaded"])
        ready = [x for x in samples if taken[x[2]] + x[1] < made[x[2]]]
        chosen = ready[: self.batch]
        left = [x[0] for x in samples if x not in chosen]
        if len(chosen) < self.batch or not self._in_time(left):
            return None
        return sorted(maker for *_, maker in chosen)

    def _in_time(self, versions: list[int]) -> bool:
        """Return True if samples of these versions, taken in order from now on, are never too old.

        Samples not yet begun need no check: they get the newest version, and are in time anyway.
        """
        start = int(self.numbers["version"]) + 1
        return all(start + k // self.batch - v <= self.max_age for k, v in enumerate(versions))

    def take(self, maker: int) -> int:
        """Take the oldest sample of a maker, and return its age in versions."""
        n = self.numbers
        age = int(n["version"] - n["made_with"][maker, n["taken"][maker] % self.window])
        assert age <= self.max_age, f"a sample is {age} iterations old, of {self.max_age} allowed"
        self._write("taken", n["taken"][maker] + 1, maker)  # the maker may now reuse the slot
        return age

    # The run calls these methods.

    def set_stop(self, stop: bool) -> None:
        """Have makers begin no further sample, or let them begin again."""
        if not stop:
            self.numbers["stopped"] = 0
        self._write("stop", int(stop))

    def close(self) -> None:
        """End every current and future wait with `Closed`."""
        self._write("closed", 1)

    def _write(self, field: str, value: Any, at: Any = ()) -> None:
        """Write a number. Then wake all who wait, so that they look at the numbers again."""
        self.numbers[field][at] = value
        self.event.signal()
