"""Services that cannot be divided, or whose calls come in no fixed order, are refused."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from hocket import Free, Pair, Plan, PlanError
from hocket.core.plan.checks_services import check_services, users
from hocket.core.program.service import Serving
from tests.core.tiny import BOX, State, env, get, learn, planned, put

ONE, APART = {"env": "all", "learn": "all"}, {"env": "actor", "learn": "learner"}
FREE = Free(Pair("learner", "actor", max_age=4))


def filled(s: State) -> tuple[State, State]:
    """`env` gives, and `learn` asks."""
    x = env(s["x"], s["w"])
    box = put(s["box"], x)
    w = learn(s["w"], get(box, s["y"]))
    return {"x": x, "y": s["y"], "w": w, "box": box}, {}


def plan_of(where: dict[str, str], replicas: int = 1, **options: Any) -> Plan:
    plan = planned(filled, "x y w box", where, served=True, **options)
    first, *others = plan.places
    return replace(plan, places=(replace(first, replicas=replicas), *others))


def test_users_are_the_calls_of_each_place() -> None:
    by_place = users(plan_of(APART), BOX)
    titles = {place: [node.title for node, _ in calls] for place, calls in by_place.items()}
    assert titles == {"actor": ["put"], "learner": ["get"]}


@pytest.mark.parametrize(
    "plan",
    [
        plan_of(ONE),
        plan_of(APART, schedule=FREE),
        plan_of(APART, 2, schedule=FREE),
        plan_of(APART, 4, schedule=FREE, serving=Serving(shards=2, prefetch=3)),
        planned(filled, "x y w box", APART),  # without a service there is nothing to check
    ],
)
def test_a_plan_that_can_serve_is_accepted(plan: Plan) -> None:
    check_services(plan)


@pytest.mark.parametrize(
    ("where", "replicas", "options", "message"),
    [
        (ONE, 1, {"serving": Serving(shards=0)}, "at least 1 shard"),
        (ONE, 1, {"serving": Serving(prefetch=-1)}, "found shards=1 and prefetch=-1"),
        (ONE, 1, {"serving": Serving(shards=2)}, "with shards=2 a service draws different rows"),
        (ONE, 1, {"serving": Serving(prefetch=1)}, "with prefetch=1 a service draws different"),
        (ONE, 2, {}, "`all` has 2 replicas, whose calls of `put` would have no fixed order"),
        (APART, 1, {}, "`actor` and `learner` use the service that keeps the box, and neither"),
        (
            {"env": "actor", "learn": "actor"}, 2,
            {"schedule": Free(Pair("actor", "actor", max_age=4))},
            "`actor` has 2 replicas, whose calls of `get` would each get another result",
        ),
        (
            APART, 4, {"schedule": FREE, "serving": Serving(shards=3)},
            "`actor` fills the 3 shards of the box with `put`. Its 4 replicas would fill them "
            "unequally: the number of replicas must be a multiple of shards=3. Use 3 replicas, or "
            "shards=1.",
        ),
        (
            APART, 1, {"schedule": FREE, "serving": Serving(shards=2)},
            "`actor` fills the 2 shards of the box with `put`. Its 1 replica would leave some "
            "empty: the number of replicas must be a multiple of shards=2. Use 2 replicas",
        ),
    ],
)  # fmt: skip
def test_a_plan_that_cannot_is_refused(
    where: dict[str, str], replicas: int, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(PlanError, match=re.escape(message)):
        check_services(plan_of(where, replicas, **options))


def test_a_service_checks_what_one_replica_gives_it() -> None:
    """The box takes the carrier `near` only, and says what it was told."""
    far = plan_of(APART, 2, schedule=FREE, serving=Serving("far", shards=2))
    with pytest.raises(ValueError, match=re.escape("no carrier far; given [[(), (2,)]]")):
        check_services(far)
