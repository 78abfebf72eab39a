"""A plan as JSON comes back as it was, and only for the graph that it was made for."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from hocket import Channel, Free, Mean, Pair, Place, Plan, PlanError, trace
from hocket.core.plan.json import from_json, to_json
from hocket.core.program.service import Serving
from hocket.runtime.launch import launch_named
from tests.core.plans import ACTORS, APART, SPLIT, WHOLE
from tests.toys import Toy


def test_json_and_back() -> None:
    graph = trace(Toy(), 8)
    plan = Plan(graph, SPLIT, {"actor -> learner": Channel(capacity=2)})
    again = from_json(to_json(plan), graph)
    assert (again.places, again.channels) == (plan.places, plan.channels)
    assert to_json(again) == to_json(plan)
    with pytest.raises(PlanError, match=r"made for Toy with 8 environments .* Make the plan again"):
        from_json(to_json(plan), trace(Toy(), 4))


FIELDS: dict[str, tuple[tuple[Place, ...], dict[str, Any]]] = {
    "free": (ACTORS, {"schedule": Free(Pair("learner", "actor", max_age=4, batch=2))}),
    "parts": (
        APART,
        {"parts": 2, "notes": ("one", "two"), "words": "central_inference", "ship": ("src",)},
    ),
    "processes": (
        (dataclasses.replace(WHOLE[0], on=("n1/cpu:0", "n1/cpu:1/cpu:0of2@50%")),),
        {
            "means": {"all": Mean("shm", delay=0.5)}, "launch": launch_named("processes"),
            "compiler_flags": "--xla_flag", "serving": Serving("tcp", shards=1, prefetch=0),
        },
    ),
    "channels": (
        SPLIT,
        {
            "channels": {"learner -> actor": Channel(3, 2, 0.5, None, "device")},
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FIELDS)
def test_no_field_is_lost(name: str) -> None:
    places, fields = FIELDS[name]
    plan = Plan(trace(Toy(), 8), places, **fields)
    again = from_json(to_json(plan), plan.graph)
    for field in dataclasses.fields(Plan):
        assert getattr(again, field.name) == getattr(plan, field.name), field.name


def test_every_field_of_a_plan_is_in_some_case() -> None:
    told = {"graph", "places", *(field for _, fields in FIELDS.values() for field in fields)}
    assert told == {field.name for field in dataclasses.fields(Plan)}


def test_a_plan_that_cannot_run_is_refused_when_it_is_read() -> None:
    plan = Plan(trace(Toy(), 8), SPLIT, {"actor -> lerner": Channel()})
    with pytest.raises(PlanError, match="unknown channel `actor -> lerner`"):
        from_json(to_json(plan), plan.graph)
