"""Free plans in which somebody would have to wait, or whose age cannot be kept, are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hocket import Channel, Free, Pair, Place, Plan, PlanError, trace
from hocket.core.plan.checks import check
from tests.toys import Toy

ACTOR, LEARNER = Place("actor", ("env", "act"), replicas=4), Place("learner", ("learn",))
BACK = "learner -> actor"


def back(max_age: int) -> Free:
    return Free(Pair("learner", "actor", max_age))


REFUSED: dict[str, tuple[tuple[Place, ...], Free, dict[str, Channel], str]] = {
    "an age of nothing": (
        (ACTOR, LEARNER), back(0), {},
        r"`learner -> actor` has max_age=0: with 4 replicas of `actor`.*at least 4. With max_age=0",
    ),
    "an age below the makers": (
        (ACTOR, LEARNER), back(3), {}, "max_age must be at least 4",
    ),
    "two pairs": (
        (ACTOR, LEARNER), Free([Pair("learner", "actor", 4), Pair("actor", "learner", 4)]), {},
        "one pair of a learner and makers, found `learner -> actor`, `actor -> learner`",
    ),
    "no pair": ((ACTOR, LEARNER), Free([]), {}, "one pair of a learner and makers, found none"),
    "a place nobody knows": (
        (ACTOR, LEARNER), Free(Pair("learner", "actr", 4)), {},
        "unknown place `actr` of the free pair .* Did you mean `actor`",
    ),
    "replicas that learn": (
        (replace(ACTOR, replicas=2), replace(LEARNER, replicas=2)), back(4), {},
        "`learner` has 2 replicas, and a learner that does not wait",
    ),
    "a delay": ((ACTOR, LEARNER), back(4), {BACK: Channel(delay=0.1)}, "takes no delay"),
    "capacity beside it": (
        (ACTOR, LEARNER), back(4), {"actor -> learner": Channel(capacity=3)},
        "`actor -> learner` takes no capacity.*`max_age` bounds",
    ),
    "a late channel beside it": (
        (ACTOR, LEARNER), back(4), {"actor -> learner": Channel(lag=1)},
        "`actor -> learner` is 1 iterations late, and `learner` and `actor` do not wait",
    ),
    "waiting in a loop": (
        (Place("env", ("env",)), Place("rest", ("act", "learn"))), Free(Pair("rest", "env", 4)), {},
        r"cannot be free.*3 times an iteration",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    places, schedule, channels, message = REFUSED[what]
    with pytest.raises(PlanError, match=message):
        check(Plan(trace(Toy(), 8), places, channels, schedule=schedule))


def test_a_learner_with_something_for_each_environment_is_refused() -> None:
    places = (Place("actor", ("act",), replicas=2), Place("learner", ("env", "learn")))
    with pytest.raises(PlanError, match=r"cannot be free|has a part for each"):
        check(Plan(trace(Toy(), 8), places, schedule=back(2)))


BATCHES = {
    "a batch that does not divide": (
        Pair("learner", "actor", 4, batch=3),
        r"`learner -> actor` has batch=3, which does not divide the 4 replicas of `actor`.*1, 2, 4",
    ),
    "a batch of nothing": (Pair("learner", "actor", 4, batch=0), "has batch=0, which does not"),
    "an age below the makers": (
        Pair("learner", "actor", 1, batch=2),
        "and 2 samples taken at once, a sample may be 2 iterations old, so max_age must be at "
        "least 2",
    ),
}


@pytest.mark.parametrize("what", BATCHES)
def test_batches_that_are_refused(what: str) -> None:
    pair, message = BATCHES[what]
    with pytest.raises(PlanError, match=message):
        check(Plan(trace(Toy(), 8), (ACTOR, LEARNER), schedule=Free(pair)))
