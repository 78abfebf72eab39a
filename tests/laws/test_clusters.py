"""The law of same numbers on several nodes, between which values cross over TCP.

A few of all combinations run by default: each algorithm, strategy, lag, way to pack and number of
nodes is in one of them. The others are slow tests.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from tests.cases import SEED, SPLITS, distance, graph_of

from hocket import Channel, Place, Plan, PlanError
from hocket.core.plan.checks import check
from hocket.core.plan.traffic import flows
from hocket.runtime.launch import cluster_named, launch_named
from hocket.runtime.refusals import refuse
from hocket.strategies import resolve
from hocket.testing import SMALL, difference
from hocket.testing.same_numbers import carried_out

pytestmark = pytest.mark.usefixtures("nothing_is_left")

TOLERANCE, ITERATIONS = 1e-5, 3
STRATEGIES = (
    "actor_learner", "actor_learner:lag=1", "central_inference", "central_inference:lag=1",
    "sebulba:actors=2,lag=0", "sebulba:actors=2,lag=1", "data_parallel",
)  # fmt: skip
NODES = (2, 4)
SOME = (
    ("ppo", "actor_learner", False, 2),
    ("dqn", "central_inference:envs=1", True, 2),
    ("recurrent-ppo", "data_parallel", True, 2),
    ("impala", "actor_learner:lag=1", True, 4),
    ("ppo-continuous", "sebulba:threads=1,lag=1", False, 2),
    ("a2c", "central_inference:envs=1,lag=1", False, 2),
    ("recurrent-impala", "sebulba:threads=1,lag=0", True, 2),
)
REFUSED = {("dqn", "data_parallel")}  # its replay is one ring for all environments
ALL = [
    case
    for case in itertools.product(SMALL, STRATEGIES, (False, True), NODES)
    if case[:2] not in REFUSED
]
CASES = [
    *(pytest.param(*case, marks=pytest.mark.xdist_group(case[0])) for case in SOME),
    *(
        pytest.param(*case, marks=[pytest.mark.xdist_group(case[0]), pytest.mark.slow])
        for case in ALL
    ),
]


def plan_on(name: str, strategy: str, nodes: int, *, pack: bool) -> Plan:
    """Return a plan on these nodes whose channels all pack, or do not."""
    cluster = cluster_named(f"loopback:{nodes}")
    plan = resolve(strategy)(graph_of(name), cluster)
    channels = {
        key: replace(plan.channels.get(key, Channel()), pack=pack)
        for flow in flows(plan)
        for key in [f"{flow.source} -> {flow.target}"]
    }
    refuse(made := check(replace(plan, channels=channels)), cluster)
    return made


@pytest.mark.parametrize(("name", "strategy", "pack", "nodes"), CASES)
def test_same_numbers(name: str, strategy: str, pack: bool, nodes: int) -> None:
    """With a lag, the numbers are those of threads, which `test_strategies.py` compares."""
    plan = plan_on(name, strategy, nodes, pack=pack)
    if "lag=1" not in strategy:
        assert distance(plan, name, ITERATIONS) <= TOLERANCE
        return
    here = resolve(strategy)(graph_of(name), cluster_named(f"loopback:{nodes}"))
    places = [replace_devices(place) for place in here.places]
    channels = {name: replace(x, pack=None) for name, x in here.channels.items()}
    threads = check(replace(here, places=places, channels=channels, launch=launch_named("threads")))
    states = [carried_out(x, SEED, ITERATIONS)[1] for x in (plan, threads)]
    assert difference(*states) <= TOLERANCE


def replace_devices(place: Place) -> Place:
    """Return a place without devices: in threads, its replicas share the first one."""
    return Place(place.name, place.run, (), place.replicas, place.backend)


def test_some_have_everything() -> None:
    for values, position in ((SMALL, 0), ((False, True), 2), (NODES, 3)):
        assert {case[position] for case in SOME} == set(values)
    kinds = [{(x.partition(":")[0], "lag=1" in x) for _, x, *_ in cases} for cases in (SOME, ALL)]
    assert kinds[0] == kinds[1]


@pytest.mark.xdist_group("ppo")
def test_equal_bit_for_bit_where_no_batch_size_changes() -> None:
    cluster = cluster_named("loopback:2")
    devices = [next(d for d in cluster.devices if d.id.node == node.name) for node in cluster.nodes]
    places = [
        Place(place.name, place.run, (device,))
        for place, device in zip(SPLITS["env+act | learn"], devices, strict=True)
    ]
    assert cluster.launch
    plan = check(Plan(graph_of("ppo", exact=True), tuple(places), launch=cluster.launch))
    assert distance(plan, "ppo", 10, exact=True) == 0.0


@pytest.mark.parametrize(
    ("strategy", "why"),
    [
        ("anakin", "has devices of n0, n1, .* use a strategy with a replica for each"),
        ("sliced", "slice"),
        ("apex", "replay service can be reached on the machine of the run alone"),
        ("apex:lag=0", "replay service can be reached on the machine of the run alone"),
        ("actor_learner:lag=free", "needs shared memory, and they are on several nodes"),
    ],
)
def test_what_cannot_be_on_several_nodes_is_refused(strategy: str, why: str) -> None:
    with pytest.raises(PlanError, match=why):
        resolve(strategy)(graph_of("dqn"), cluster_named("loopback:2"))
