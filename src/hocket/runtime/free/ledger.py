"""Who is at work on which sample, where a learner and those who make samples do not wait.

Each maker may have `window` samples under way or waiting, and every sample remembers the version of
what it was made with. The learner takes whichever is ready, oldest version first, but never one
that would leave another, still being made, too old when its turn comes: then it waits for that one.
So no sample is learned from more than `max_age` versions after the one it was made with, and none
is thrown away.

With a `batch`, an iteration takes so many samples at once, the oldest that are ready. Where a maker
may have several waiting, two of one batch may be its: whoever is fast is not made to wait.

There are at most `window` x makers samples at once, and that is at most `max_age` x `batch`: hence
a new sample, with the newest version, always has a turn in time, whatever the others do.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hocket.core.plan.data import Plan
from hocket.runtime.observe.status import names
from hocket.system.events import Event

NONE = -1
"""The version before the first one."""


def helpers(plan: Plan) -> list[tuple[str, int]]:
    """The instances that work for the only maker, by place and number."""
    assert plan.free
    pair = plan.free.learner, plan.free.maker
    return [(place, index) for place, index in names(plan) if place not in pair]


def board_dtype(plan: Plan) -> np.dtype[Any]:
    """The numbers that all instances of a free plan share."""
    assert plan.free
    makers, window = plan.free.makers, plan.free.window
    return np.dtype([
        ("stop", "i8"),  # makers begin no further sample
        ("closed", "i8"),  # the run is over
        ("version", "i8"),  # the iteration that the learner is in
        ("loaded", "i8", (makers,)),  # samples that were saved, and count as begun and made
        ("begun", "i8", (makers,)),  # samples, by who makes them
        ("made", "i8", (makers,)),
        ("taken", "i8", (makers,)),
        ("helped", "i8", (max(1, len(helpers(plan))),)),  # iterations of those who work for one
        ("stopped", "i8", (makers,)),  # whether it has seen `stop`
        ("made_with", "i8", (makers, window)),  # the version of each sample that is not taken yet
    ])  # fmt: skip


class Board:
    """What is written on it is read by all; each number is written by one of them."""

    def __init__(self, plan: Plan, event: Event, numbers: np.ndarray | None = None) -> None:
        assert plan.free
        self.window, self.makers, self.helpers = plan.free.window, plan.free.makers, helpers(plan)
        self.max_age, self.batch = plan.free.max_age, plan.free.batch
        self.numbers = np.zeros((), board_dtype(plan)) if numbers is None else numbers
        self.event = event
        if numbers is None:
            self.clear()

    def clear(self) -> None:
        """As before the first sample; nobody may be using it."""
        self.numbers[...] = np.zeros((), self.numbers.dtype)
        self.numbers["version"] = NONE

    # What a maker of samples does.

    def may_begin(self, maker: int) -> bool:
        n = self.numbers
        room = n["begun"][maker] - n["taken"][maker] < self.window
        return bool(n["stop"] or (room and n["version"] != NONE))

    def begin(self, maker: int) -> bool:
        """Announce a sample, before its version is read: it may get newer, never older."""
        n = self.numbers
        if n["stop"]:
            n["stopped"][maker] = 1
            self.event.signal()
            return False
        n["made_with"][maker, n["begun"][maker] % self.window] = n["version"]
        n["begun"][maker] += 1
        self.event.signal()
        return True

    def made_with(self, maker: int, version: int) -> None:
        n = self.numbers
        n["made_with"][maker, (n["begun"][maker] - 1) % self.window] = version
        self.event.signal()

    def end(self, maker: int) -> None:
        self.numbers["made"][maker] += 1
        self.event.signal()

    def help(self, place: str, index: int) -> None:
        """One who works for the maker has come to the end of an iteration."""
        self.numbers["helped"][self.helpers.index((place, index))] += 1
        self.event.signal()

    def led(self) -> int:
        """How many samples the only maker has begun since all was loaded."""
        return int(self.numbers["begun"][0] - self.numbers["loaded"][0])

    # What the learner does.

    def publish(self, version: int) -> None:
        self.numbers["version"] = version
        self.event.signal()

    def choice(self) -> list[int] | None:
        """Whose samples may be learned from now: the oldest of those that are ready, by maker."""
        n = self.numbers
        # Of one version, everybody's first before anybody's second.
        samples = sorted(
            (int(n["made_with"][maker, k % self.window]), k - n["taken"][maker], maker)
            for maker in range(self.makers)
            for k in range(n["taken"][maker], n["begun"][maker])
        )
        made = n["made"]
        if self.helpers:
            made = np.minimum(made, n["helped"].min() + n["loaded"])
        ready = [x for x in samples if n["taken"][x[2]] + x[1] < made[x[2]]]
        chosen = ready[: self.batch]
        left = [version for version, *which in samples if (version, *which) not in chosen]
        if len(chosen) < self.batch or not self._in_time(left):
            return None
        return sorted(maker for *_, maker in chosen)

    def _in_time(self, versions: list[int]) -> bool:
        """Whether samples of these versions can be taken in this order, from the next one on."""
        start = int(self.numbers["version"]) + 1
        return all(start + k // self.batch - v <= self.max_age for k, v in enumerate(versions))

    def take(self, maker: int) -> int:
        """The age of the first sample that this maker has ready, which is now learned from."""
        n = self.numbers
        age = int(n["version"] - n["made_with"][maker, n["taken"][maker] % self.window])
        assert age <= self.max_age, f"a sample is {age} iterations old, of {self.max_age} allowed"
        n["taken"][maker] += 1
        self.event.signal()
        return age

    # What those do who start and end it.

    def set_stop(self, stop: bool) -> None:
        self.numbers["stop"] = int(stop)
        if not stop:
            self.numbers["stopped"] = 0
        self.event.signal()

    def close(self) -> None:
        self.numbers["closed"] = 1
        self.event.signal()
