from __future__ import annotations

import dataclasses

import pytest

from hocket import Channel, Place, Plan, PlanError, trace
from hocket.core.plan.checks import check
from hocket.core.plan.json import from_json, to_json
from hocket.core.projection.instructions import Compute, Receive, Repeat, Send
from tests.toys import Toy

SPLIT = (Place("actor", run=("env", "act")), Place("learner", run=("learn",)))
APART = (Place("env", run=("env",)), Place("act", run=("act",)), Place("learner", run=("learn",)))


def test_json_and_back() -> None:
    graph = trace(Toy(), 8)
    plan = Plan(graph, SPLIT, {"actor -> learner": Channel(capacity=2)})
    again = from_json(to_json(plan), graph)
    assert (again.places, again.channels) == (plan.places, plan.channels)
    assert to_json(again) == to_json(plan)
    with pytest.raises(PlanError, match=r"made for Toy with 8 environments .* Make the plan again"):
        from_json(to_json(plan), trace(Toy(), 4))


def test_a_plan_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Plan(trace(Toy(), 8), SPLIT).places = ()  # type: ignore[misc]


def test_channels_are_checked() -> None:
    graph = trace(Toy(), 8)
    with pytest.raises(PlanError, match=r"unknown channel `actor -> lerner`.*`actor -> learner`"):
        check(Plan(graph, SPLIT, {"actor -> lerner": Channel()}))
    with pytest.raises(PlanError, match="capacity >= 1"):
        check(Plan(graph, SPLIT, {"actor -> learner": Channel(capacity=0)}))


def test_names_of_places() -> None:
    with pytest.raises(PlanError, match="different names"):
        check(Plan(trace(Toy(), 8), (SPLIT[0], dataclasses.replace(SPLIT[1], name="actor"))))


def test_a_name_wins_over_a_role() -> None:
    places = (Place("rest", run=("env", "act", "learn")), Place("own", run=("update",)))
    assert Plan(trace(Toy(), 8), places).where == {"act": "rest", "env": "rest", "update": "own"}


def test_a_loop_on_one_place_is_one_segment() -> None:
    programs = Plan(trace(Toy(), 8), SPLIT).projection.programs
    # The last one makes a metric, which nobody waits for.
    assert [type(x) for x in programs["actor"]] == [Receive, Compute, Send, Compute]
    assert [type(x) for x in programs["learner"]] == [Send, Receive, Compute]


def test_a_loop_that_crosses_is_driven_by_each_place() -> None:
    programs = Plan(trace(Toy(), 8), APART).projection.programs
    (loop,) = [x for x in programs["act"] if isinstance(x, Repeat)]
    assert loop.length == 3
    kinds = [type(x) for x in loop.code]
    assert kinds.count(Receive) == kinds.count(Send) == 1
    assert not [x for x in programs["learner"] if isinstance(x, Repeat)]


def test_what_was_sent_is_never_donated() -> None:
    for places in (SPLIT, APART):
        for code in Plan(trace(Toy(), 8), places).projection.programs.values():
            sent = {v for x in code if isinstance(x, Send) for v in x.transfer.values}
            donated = {v for x in code if isinstance(x, Compute) for v in x.donate}
            assert not sent & donated
