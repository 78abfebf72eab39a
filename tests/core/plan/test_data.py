"""Plans as data: where fragments run, and what follows for replicas, iterations and channels."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import pytest

from hocket import Channel, Free, Pair, Place, Plan, PlanError, trace
from hocket.core.plan.data import Launch
from tests.core.plans import (
    ACTOR,
    ACTORS,
    ALL,
    APART,
    LEARNER,
    SPLIT,
    WHOLE,
    AveragedCrowd,
    checked,
)
from tests.core.tiny import leaf, only_loop
from tests.toys import Toy


def test_a_plan_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Plan(trace(Toy(), 8), SPLIT).places = ()  # type: ignore[misc]


def test_a_name_wins_over_a_role() -> None:
    places = (Place("rest", run=("env", "act", "learn")), Place("own", run=("update",)))
    assert Plan(trace(Toy(), 8), places).where == {"act": "rest", "env": "rest", "update": "own"}


def test_a_fragment_no_place_runs() -> None:
    with pytest.raises(PlanError, match=r"fragment `update` \(role `learn`\) is run by no place"):
        checked(Toy(), (ACTOR,))


def test_a_fragment_two_places_run() -> None:
    with pytest.raises(PlanError, match=r"`update` .* is run by 2 places \(all, learner\)"):
        checked(Toy(), (Place("all", ALL), LEARNER))


def test_abilities_that_cannot_be() -> None:
    with pytest.raises(ValueError, match=r"unknown value `nobody` of `shares_memory`.*all, node"):
        Launch("mine", shares_memory=cast(Any, "nobody"))
    with pytest.raises(ValueError, match=r"`mine` says .* one_program=True needs one_pro"):
        Launch("mine", one_process=False)


@pytest.mark.parametrize(
    ("devices", "replicas", "shares"),
    [
        (4, 2, [[0, 1], [2, 3]]),
        (2, 2, [[0], [1]]),
        (2, 4, [[0], [0], [1], [1]]),
        (1, 2, [[0], [0]]),
        (0, 2, [[], []]),
    ],
)
def test_replicas_share_the_devices_of_their_place(
    devices: int, replicas: int, shares: list[list[int]]
) -> None:
    place = Place("all", ALL, [f"cpu:{i}" for i in range(devices)], replicas)
    numbers = [[device.index for device in place.share(index)] for index in range(replicas)]
    assert numbers == shares


def test_a_channel_that_is_not_named_is_the_default_one() -> None:
    late = Channel(capacity=2, lag=3)
    plan = Plan(trace(Toy(), 8), SPLIT, {"actor -> learner": late})
    assert plan.channel("actor", "learner") == late
    assert plan.channel("learner", "actor") == Channel()
    slots = {(t.source, t.target): plan.slots(t) for t in plan.projection.transfers}
    assert slots == {("actor", "learner"): 5, ("learner", "actor"): 1}


def test_an_iteration_of_a_free_plan_is_of_some_environments() -> None:
    places = (dataclasses.replace(ACTOR, replicas=4), LEARNER)
    plan = Plan(trace(Toy(), 8), places, schedule=Free(Pair("learner", "actor", 6, batch=2)))
    assert plan.free and (plan.free.makers, plan.free.shares) == (4, 2)
    assert plan.iteration.num_envs == 4
    assert (plan.envs_of("learner"), plan.envs_of("actor")) == (4, 8)
    samples = [t for t in plan.projection.transfers if t.target == "learner"]
    assert samples and {plan.slots(t) for t in samples} == {3}
    waits = Plan(trace(Toy(), 8), places)
    assert waits.free is None and waits.iteration is waits.graph


def test_replicas_that_average_are_one_program_or_processes() -> None:
    graph = trace(Toy(), 8)
    threads = Plan(graph, WHOLE)
    assert threads.averaging == threads.grouped == {"all"} and threads.instances("all") == 1
    apart = Launch("apart", one_process=False, one_program=False)
    processes = Plan(graph, WHOLE, launch=apart)
    assert processes.averaging == {"all"} and processes.grouped == set()
    assert processes.instances("all") == 2
    actors = Plan(graph, ACTORS)
    assert actors.averaging == set() and actors.instances("actor") == 2


def test_kinds_are_of_replicated_places_alone() -> None:
    plan = Plan(trace(Toy(), 8), ACTORS)
    x, w = leaf(plan.graph, "x"), leaf(plan.graph, "w")
    assert plan.kinds.keys() == {"actor"}
    assert [plan.kinds["actor"][v].tag for v in (x, w)] == ["per_env", "uniform"]
    assert [plan.axes.axis(v) for v in (x, w)] == [0, None]


def test_a_replica_with_one_environment_is_compared_at_twice_the_size() -> None:
    """For an axis of size one jax would leave equations out."""
    plan = Plan(trace(Toy(), 2), ACTORS)
    axes = plan.axes_on(plan.place("actor"))
    assert (axes.graph.num_envs, axes.other.num_envs) == (4, 2)
    axes = Plan(trace(Toy(), 8), ACTORS).axes_on(plan.place("actor"))
    assert (axes.graph.num_envs, axes.other.num_envs) == (8, 4)


def test_loops_whose_messages_have_environments_are_cut_into_parts() -> None:
    graph = trace(Toy(), 8)
    plan, loop = Plan(graph, APART, parts=2), only_loop(graph)
    assert plan.cut_loops == {loop.id}
    cuts = {bool(t.loops): plan.cuts(t) for t in plan.projection.transfers}
    assert cuts == {True: 2, False: 1}
    assert plan.blocks(loop.id) == 1
    assert Plan(graph, APART).cut_loops == set()
    means = Plan(trace(AveragedCrowd(), 8), (dataclasses.replace(APART[0], replicas=2), *APART[1:]))
    assert means.blocks(only_loop(means.graph).id) == 2
