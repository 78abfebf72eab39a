"""The ledger of a free plan, alone: who may begin, what the learner takes, and in which order."""

from __future__ import annotations

import functools
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hocket import Free, Pair, Place, Plan, trace
from hocket.runtime.free.ledger import NONE, Ledger, helpers, ledger_dtype
from hocket.system.events import Closed, ThreadEvent
from tests.toys import Toy

graph = functools.cache(lambda: trace(Toy(), 8))


@functools.cache
def plan_of(makers: int, max_age: int, batch: int = 1) -> Plan:
    places = (Place("actor", ("env", "act"), replicas=makers), Place("learner", ("learn",)))
    return Plan(graph(), places, schedule=Free(Pair("learner", "actor", max_age, batch)))


def ledger_of(makers: int, max_age: int, batch: int = 1, event: Any = None) -> Ledger:
    return Ledger(plan_of(makers, max_age, batch), event or ThreadEvent())


def make(ledger: Ledger, *makers: int) -> None:
    """Have each of these makers begin a sample with the newest version, and finish it."""
    for maker in makers:
        assert ledger.begin(maker)
        ledger.end(maker)


def test_nobody_begins_before_the_first_version() -> None:
    ledger = ledger_of(makers=2, max_age=2)
    assert not ledger.may_begin(0)
    ledger.publish(0)
    assert ledger.may_begin(0) and ledger.may_begin(1)


def test_a_maker_begins_no_more_samples_than_its_window() -> None:
    ledger = ledger_of(makers=2, max_age=4)
    assert ledger.window == 2
    ledger.publish(0)
    make(ledger, 0, 0)
    assert not ledger.may_begin(0) and ledger.may_begin(1)
    ledger.take(0)
    assert ledger.may_begin(0)


def test_nothing_is_taken_before_it_is_made() -> None:
    ledger = ledger_of(makers=2, max_age=2)
    ledger.publish(0)
    assert ledger.choice() is None
    ledger.begin(1)
    assert ledger.choice() is None
    ledger.end(1)
    assert ledger.choice() == [1]
    assert ledger.take(1) == 0
    assert ledger.choice() is None


def test_the_oldest_version_comes_first() -> None:
    ledger = ledger_of(makers=2, max_age=9)
    ledger.publish(0)
    make(ledger, 1)
    ledger.publish(1)
    make(ledger, 0, 1)
    ages = []
    for expected in (1, 0, 1):
        assert ledger.choice() == [expected]
        ages.append(ledger.take(expected))
    assert ages == [1, 0, 0]


def test_the_version_that_was_read_counts() -> None:
    """A maker announces a version, and may then read a newer one."""
    ledger = ledger_of(makers=2, max_age=9)
    ledger.publish(0)
    make(ledger, 0, 1)
    ledger.made_with(0, 2)
    ledger.publish(2)
    assert ledger.choice() == [1]
    assert (ledger.take(1), ledger.take(0)) == (2, 0)


def test_the_learner_waits_for_a_sample_that_would_get_too_old() -> None:
    ledger = ledger_of(makers=2, max_age=2)
    ledger.publish(1)
    ledger.begin(1)
    ledger.publish(3)
    make(ledger, 0)
    assert ledger.choice() is None  # maker 1 would have its turn in iteration 4, at an age of 3
    ledger.end(1)
    assert ledger.choice() == [1] and ledger.take(1) == 2
    assert ledger.choice() == [0]


def test_a_sample_that_got_too_old_is_our_mistake() -> None:
    ledger = ledger_of(makers=2, max_age=2)
    ledger.publish(0)
    make(ledger, 0)
    ledger.publish(3)
    with pytest.raises(AssertionError, match="3 iterations old, of 2 allowed"):
        ledger.take(0)


def test_a_batch_is_full_or_not_taken() -> None:
    ledger = ledger_of(makers=4, max_age=2, batch=2)
    ledger.publish(0)
    make(ledger, 3)
    assert ledger.choice() is None
    make(ledger, 1)
    assert ledger.choice() == [1, 3]


def test_a_fast_maker_may_fill_a_batch() -> None:
    """But among samples of one version every maker's first comes before anybody's second."""
    ledger = ledger_of(makers=2, max_age=2, batch=2)
    ledger.publish(0)
    make(ledger, 0, 0)
    assert ledger.choice() == [0, 0]
    make(ledger, 1)
    assert ledger.choice() == [0, 1]


def test_makers_stop_once_they_have_seen_it() -> None:
    ledger = ledger_of(makers=2, max_age=2)
    ledger.set_stop(True)
    assert ledger.may_begin(1) and not ledger.begin(1)  # it need not wait to find out
    assert ledger.numbers["stopped"].tolist() == [0, 1] and not ledger.numbers["begun"].any()
    ledger.set_stop(False)
    ledger.publish(0)
    assert ledger.begin(1) and not ledger.numbers["stopped"].any()


def test_a_part_of_a_sample_is_made_by_helpers() -> None:
    """An unfinished part of one of them keeps the sample from the learner."""
    places = (Place("env", ("env",), replicas=2), Place("act", ("act",)), Place("top", ("learn",)))
    plan = Plan(graph(), places, schedule=Free(Pair("top", "act", max_age=2)))
    assert helpers(plan) == [("env", 0), ("env", 1)]
    ledger = Ledger(plan, ThreadEvent())
    ledger.numbers["loaded"] = ledger.numbers["begun"] = ledger.numbers["made"] = 1
    ledger.publish(0)
    assert ledger.choice() == [0]  # it was loaded, so nobody has to help any more
    ledger.take(0)
    assert ledger.led() == 0
    make(ledger, 0)
    assert ledger.led() == 1
    ledger.help("env", 1)
    assert ledger.choice() is None
    ledger.help("env", 0)
    assert ledger.choice() == [0]


def test_all_instances_see_the_same_numbers() -> None:
    plan = plan_of(makers=2, max_age=2)
    numbers = np.zeros((), ledger_dtype(plan))
    learner, maker = (Ledger(plan, ThreadEvent(), numbers) for _ in range(2))
    learner.clear()
    assert maker.numbers["version"] == NONE
    learner.publish(7)
    make(maker, 1)
    assert learner.choice() == [1] and learner.take(1) == 0
    learner.clear()
    assert not maker.may_begin(1) and not maker.numbers["made"].any()


class Script:
    """An event in one thread: whoever waits for it has the next step of a script happen."""

    def __init__(self, *steps: Callable[[], Any]) -> None:
        self.steps, self.signals = deque(steps), 0

    def count(self) -> int:
        return self.signals

    def signal(self) -> None:
        self.signals += 1

    def wait(self, count: int) -> None:
        if count == self.signals:  # else it was signalled in between, and nobody sleeps
            self.steps.popleft()()


def test_a_wait_ends_when_it_is_so() -> None:
    event = Script(lambda: ledger.set_stop(False), lambda: ledger.publish(0))
    ledger = ledger_of(makers=2, max_age=2, event=event)
    ledger.wait(lambda: ledger.may_begin(0))
    assert not event.steps


def test_a_signal_while_somebody_looks_is_not_slept_through() -> None:
    event = Script()  # with no step that could wake anybody
    ledger = ledger_of(makers=2, max_age=2, event=event)
    looks: list[bool] = []

    def ready() -> bool:
        looks.append(ledger.may_begin(0))
        if len(looks) == 1:
            ledger.publish(0)
        return looks[-1]

    ledger.wait(ready)
    assert looks == [False, True]


def test_a_wait_ends_with_the_run() -> None:
    event = Script(lambda: ledger.close())
    ledger = ledger_of(makers=2, max_age=2, event=event)
    for ready in (False, True):  # also if there would be something to do
        with pytest.raises(Closed):
            ledger.wait(lambda ready=ready: ready)


@pytest.mark.parametrize(
    "change",
    [
        lambda ledger: ledger.publish(1), lambda ledger: ledger.begin(0),
        lambda ledger: ledger.made_with(0, 1), lambda ledger: ledger.end(0),
        lambda ledger: ledger.take(0), lambda ledger: ledger.set_stop(True),
        lambda ledger: ledger.set_stop(False), lambda ledger: ledger.close(),
    ],
)  # fmt: skip
def test_whoever_waits_is_told_of_every_change(change: Callable[[Ledger], Any]) -> None:
    event = Script()
    ledger = ledger_of(makers=2, max_age=2, event=event)
    ledger.publish(0)
    make(ledger, 0)
    before = event.signals
    change(ledger)
    assert event.signals > before


class Play:
    """Makers and a learner that take turns at random; each turn is one call of the ledger."""

    def __init__(self, ledger: Ledger, seed: int) -> None:
        self.ledger, self.random = ledger, random.Random(seed)
        self.phase = ["waits"] * ledger.makers
        self.read: list[list[int]] = [[] for _ in self.phase]
        """The versions with which each maker has made its samples."""
        self.taken = [0] * ledger.makers
        self.version, self.most = 0, 0

    def make(self, maker: int) -> bool:
        """Have a maker do the next thing, if it need not wait."""
        ledger, phase = self.ledger, self.phase[maker]
        if phase == "waits":
            if not ledger.may_begin(maker):
                return False
            assert ledger.begin(maker)
            self.phase[maker] = "reads"
        elif phase == "reads":  # perhaps long after it has begun
            self.read[maker].append(self.version)
            ledger.made_with(maker, self.version)
            self.phase[maker] = "works"
        else:
            ledger.end(maker)
            self.phase[maker] = "waits"
        return True

    def learn(self) -> bool:
        """Have the learner run an iteration, if it need not wait."""
        if (makers := self.ledger.choice()) is None:
            return False
        assert len(makers) == self.ledger.batch
        for maker in makers:
            age = self.ledger.take(maker)
            # In order, each once, and as old as the ledger says.
            assert age == self.version - self.read[maker][self.taken[maker]]
            self.taken[maker] += 1
            self.most = max(self.most, age)
        self.version += 1
        self.ledger.publish(self.version)
        return True

    def turn(self) -> None:
        """Have somebody do something. Somebody always can."""
        turns = [self.learn, *(functools.partial(self.make, k) for k in range(self.ledger.makers))]
        self.random.shuffle(turns)
        assert any(turn() for turn in turns), "nobody can go on"


@pytest.mark.parametrize(
    ("makers", "max_age", "batch"), [(1, 2, 1), (2, 2, 1), (4, 9, 1), (4, 2, 2), (4, 5, 2)]
)
def test_in_any_order_nobody_is_stuck_and_nothing_gets_too_old(
    makers: int, max_age: int, batch: int
) -> None:
    oldest = 0
    for seed in range(5):
        play = Play(ledger_of(makers, max_age, batch), seed)
        play.ledger.publish(0)
        while play.version < 40:
            play.turn()
        assert sum(play.taken) == 40 * batch
        begun, taken = (play.ledger.numbers[name] for name in ("begun", "taken"))
        assert taken.tolist() == play.taken and (begun - taken <= play.ledger.window).all()
        oldest = max(oldest, play.most)
    assert 0 < oldest <= max_age
