"""The status of each instance: its layout, and what can be read from two looks at it."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from hocket import Free, Pair, Place, Plan, trace
from hocket.report.outcome import Activity
from hocket.runtime.observe.status import (
    IDLE,
    RECEIVING,
    SENDING,
    WORKING,
    activities,
    counting,
    deadlock,
    names,
    new_statuses,
    status_dtype,
)
from tests.toys import Toy

ACTORS = (Place("actor", ("env", "act"), replicas=2), Place("learner", ("learn",)))
plan_of = functools.cache(lambda: Plan(trace(Toy(), 8), ACTORS))


def test_every_instance_has_a_name() -> None:
    assert names(plan_of()) == [("actor", 0), ("actor", 1), ("learner", 0)]
    together = Plan(plan_of().graph, (Place("all", ("env", "act", "learn"), replicas=2),))
    assert names(together) == [("all", 0)]  # replicas that are one program are one instance


def test_whose_iterations_count() -> None:
    assert counting(plan_of()) == {"actor", "learner"}
    free = Plan(plan_of().graph, ACTORS, schedule=Free(Pair("learner", "actor", max_age=2)))
    assert counting(free) == {"learner"}


def test_statuses_may_lie_in_memory_that_others_see() -> None:
    buffer = bytearray(3 * status_dtype(plan_of()).itemsize)
    here, there = (new_statuses(plan_of(), buffer) for _ in range(2))
    here[1]["crossed"][0] = 7
    assert there["crossed"][:, 0].tolist() == [0, 7, 0]
    assert len(new_statuses(plan_of())) == 3 and not new_statuses(plan_of())["crossed"].any()


def waiting() -> np.ndarray:
    """Return statuses of a plan in which the actors wait for parameters, and the learner for x."""
    to_actor, to_learner = (
        next(t.id for t in plan_of().projection.transfers if t.target == place)
        for place in ("actor", "learner")
    )
    now = new_statuses(plan_of())
    now["phase"], now["iteration"] = RECEIVING, 4
    now["transfer"], now["peer"] = [to_actor, to_actor, to_learner], [0, 0, 1]
    return now


def test_a_deadlock_says_who_waits_for_whom() -> None:
    now = waiting()
    now["phase"][1] = SENDING
    now["transfer"][1], now["peer"][1] = now["transfer"][2], 0
    assert deadlock(plan_of(), now, now) == (
        "the instances wait for each other, and none can go on:\n"
        "  actor/0 waits for w from learner/0, in iteration 4\n"
        "  actor/1 waits for room to send x to learner/0, in iteration 4\n"
        "  learner/0 waits for x from actor/1, in iteration 4"
    )


def test_who_has_ended_its_block_is_not_part_of_it() -> None:
    now = waiting()
    now["phase"][0] = IDLE
    message = deadlock(plan_of(), now, now)
    assert message is not None and "actor/0" not in message and "actor/1 waits" in message


def change(field: str, value: int) -> Any:
    def changed(now: np.ndarray) -> None:
        now[field][1] = value

    return changed


@pytest.mark.parametrize("change", [change("phase", WORKING), change("moves", 3)])
def test_who_works_or_moves_is_not_stuck(change: Any) -> None:
    before, now = waiting(), waiting()
    change(now)
    assert deadlock(plan_of(), before, now) is None


def test_a_run_that_waits_for_nothing_is_not_stuck() -> None:
    idle = new_statuses(plan_of())
    assert deadlock(plan_of(), idle, idle) is None
    before = waiting()
    before["phase"][2] = WORKING
    assert deadlock(plan_of(), before, waiting()) is None  # it has only just begun to wait


def test_how_busy_each_place_was() -> None:
    before, now = new_statuses(plan_of()), new_statuses(plan_of())
    for statuses, seconds in ((before, 1), (now, 3)):
        statuses["working"] = seconds * 10**9
        statuses["waited"][0] = [0, 10**9]
        statuses["waited"][2] = [seconds * 10**9 // 4, 0]
    now["waited"][1] += [0, 10**9]  # one of two actors waited for half of the time
    now["waited"][0] += [4 * 10**6, 0]
    now["sent"] = [300, 100, 50]
    assert activities(plan_of(), before, now) == [
        Activity("actor", 2, 0.75, {"learner": 0.25}, 200.0),
        Activity("learner", 1, 0.75, {"actor": 0.25}, 25.0),
    ]


def test_a_place_that_has_not_worked_is_not_busy() -> None:
    statuses = new_statuses(plan_of())
    for activity in activities(plan_of(), statuses, statuses):
        assert (activity.busy, activity.waits, activity.bytes_per_second) == (0.0, {}, 0.0)
