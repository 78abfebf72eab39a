"""Strategies on several nodes, equal and unequal: who gets how many replicas, and who learns."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from tests.cases import graph_of
from tests.clusters import by_node, cluster, gpus, hosts, node
from tests.toys import Toy

import hocket
from hocket import Plan, PlanError, trace
from hocket.cluster import Cluster
from hocket.core.graph.trace import Graph
from hocket.strategies import resolve

GRAPH = trace(Toy(), 72)


def made(words: str, nodes: Cluster, graph: Graph = GRAPH) -> Plan:
    return resolve(words)(graph, nodes)


DEALT = {
    "by cores": (hosts(8, 64), 9, {"n0": 1, "n1": 8}),
    "by cores, several times": (hosts(8, 64), 36, {"n0": 4, "n1": 32}),
    "of equal nodes equally many": (hosts(4, 4, 4), 6, {"n0": 2, "n1": 2, "n2": 2}),
    "a small node is not idle": (hosts(2, 64), 4, {"n0": 1, "n1": 3}),
    "the learner's node may have none": (hosts(4, 4, 4), 2, {"n0": 1, "n1": 1}),
    "what is left goes to the learner": (hosts(4, 4), 3, {"n0": 1, "n1": 2}),
    "by devices": (gpus(2, 5), 6, {"n0": 2, "n1": 4}),
    "more than devices": (gpus(2, 5), 36, {"n0": 12, "n1": 24}),
    "a node without accelerators": (cluster(node("n0"), node("n1", gpus=4)), 8, {"n0": 2, "n1": 6}),
    "all accelerators learn": (
        cluster(node("n0", 8), node("n1", 8, gpus=1), node("n2", 24)), 4, {"n0": 1, "n2": 3},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DEALT)
def test_actors_are_dealt(name: str) -> None:
    nodes, actors, expected = DEALT[name]
    plan = made(f"actor_learner:actors={actors}", nodes)
    assert by_node(plan, "actor") == expected
    assert not plan.notes
    numbers = [plan.place("actor").node(i) for i in range(actors)]
    assert numbers == sorted(numbers), "replicas of one node have consecutive numbers"


def test_devices_of_a_node_are_used_equally() -> None:
    plan = made("actor_learner:actors=12", gpus(4, 4), GRAPH)
    on = [str(device) for device in plan.place("actor").on]
    assert {name: on.count(name) for name in on} == {
        **{f"n0/gpu:{i}": 2 if i in (0, 1, 2) else 1 for i in range(4)},
        "n1/gpu:0": 2, "n1/gpu:1": 2, "n1/gpu:2": 1,
    }  # fmt: skip


def test_nodes_without_work_are_told() -> None:
    plan = made("actor_learner:actors=2", hosts(4, 4, 4, 4, 4, 4))
    assert by_node(plan, "actor") == {"n0": 1, "n1": 1}
    assert plan.notes == ("note: no work for n2 to n4: more replicas would use more nodes",)
    assert str(plan).endswith(plan.notes[0])


LEARNERS = {
    "the last of equal nodes": ("", hosts(4, 4), "n1/cpu:0"),
    "the node with the most cores": ("", hosts(64, 4), "n0/cpu:0"),
    "an accelerator, where there is one": (
        "", cluster(node("n0", gpus=2), node("n1")), "n0/gpu:1"
    ),
    "several on one node": (":learners=2", gpus(4, 4), "n1/gpu:2, n1/gpu:3"),
    "several on the only node with so many": (":learners=3", gpus(4, 2), "n0/gpu:1 to n0/gpu:3"),
}  # fmt: skip


@pytest.mark.parametrize("strategy", ["actor_learner", "central_inference"])
@pytest.mark.parametrize("name", LEARNERS)
def test_who_learns(name: str, strategy: str) -> None:
    options, nodes, expected = LEARNERS[name]
    plan = made(f"{strategy}{options}", nodes)
    assert f"learner: {'' if strategy == 'actor_learner' else 'act, '}" in str(plan)
    assert f"  on {expected}\n" in str(plan)


def test_one_accelerator_acts_and_learns() -> None:
    plan = made("actor_learner:actors=2", gpus(1))
    assert str(plan.places[0].on[0]) == str(plan.places[1].on[0]) == "n0/gpu:0"


def test_actor_and_learner_of_late_inference_are_on_one_node() -> None:
    plan = made("central_inference:envs=8,lag=1,parts=1", gpus(3, 3, 3), graph_of("ppo"))
    assert by_node(plan, "env") == {"n0": 3, "n1": 3, "n2": 2}
    assert by_node(plan, "actor") == by_node(plan, "learner") == {"n2": 1}


def test_replicas_of_everything_keep_to_accelerators() -> None:
    """They wait for each other in every mean, so a host among them would slow all down."""
    plan = made("data_parallel:replicas=4", cluster(node("n0"), node("n1", gpus=4)))
    assert by_node(plan, "replica") == {"n1": 4}
    assert plan.notes == ("note: no work for n0: more replicas would use more nodes",)


SEBULBA = {
    "on all hosts": ("sebulba", hosts(8, 8), {"n0": 2, "n1": 2}),
    "by cores": ("sebulba:threads=9", hosts(8, 64), {"n0": 2, "n1": 16}),
    "on all other accelerators": ("sebulba:threads=3", gpus(4, 3), {"n0": 9, "n1": 9}),
    "on as many devices of each node": ("sebulba:actors=4", gpus(4, 4), {"n0": 4, "n1": 4}),
    "with so many environments": ("sebulba:batch=6", gpus(2, 2), {"n0": 8, "n1": 4}),
    "on the hosts of accelerators": ("sebulba:acting=cpu", gpus(1, 1), {"n0": 2, "n1": 2}),
}


@pytest.mark.parametrize("name", SEBULBA)
def test_sebulba(name: str) -> None:
    words, nodes, expected = SEBULBA[name]
    plan = made(words, nodes)
    assert by_node(plan, "actor") == expected
    hocket.plan(Toy(), distribute=words, cluster=nodes, num_envs=72)


def test_sebulba_gives_each_device_its_threads() -> None:
    on = made("sebulba:threads=3,actors=2", gpus(4, 4)).place("actor").on
    assert [str(device) for device in on] == ["n0/gpu:0"] * 3 + ["n1/gpu:0"] * 3


REFUSED = {
    "more learners than a node has": (
        "actor_learner:learners=3", gpus(2, 2),
        "learners=3 devices must be on one node of n0, n1 with gpu:0, gpu:1 (GPU) each, because "
        "the learner is one process, and `n1` has the most: use from 1 to 2 learners, or "
        "`data_parallel`, whose replicas learn on every node.",
    ),
    "learners on several hosts": (
        "actor_learner:learners=2", hosts(4, 4), "and `n1` has the most: use from 1 to 1 ",
    ),
    "no learner": (
        "actor_learner:learners=0", gpus(2), "learners=0 devices must be on one node of n0 with",
    ),
    "nobody left to act": (
        "actor_learner:learners=2", gpus(2),
        "learners=2 are all devices of n0 with gpu:0, gpu:1 (GPU), and none is left for the "
        "others: use learners=1 or fewer.",
    ),
    "more actors than devices": (
        "sebulba:actors=8", gpus(4, 4),
        "actors=8 must be from 1 to 7, the number of devices that can act: there are n0, n1 with "
        "gpu:0 to gpu:3 (GPU) each.",
    ),
    "one program": (
        "anakin", gpus(*[8] * 64),
        "replica 0 of `anakin` has devices of n0 to n63, and on a cluster each replica is a "
        "process of one node: use a strategy with a replica for each, such as `actor_learner`",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    words, nodes, message = REFUSED[name]
    with pytest.raises(PlanError, match=re.escape(message)):
        made(words, nodes)


def test_a_cluster_without_a_launcher_is_only_looked_at() -> None:
    nodes = hosts(8, 8)
    plan = hocket.plan(Toy(), distribute="actor_learner", cluster=nodes)
    assert "not to be run: the cluster has no launcher" in str(plan)
    message = r'made for a `Cluster` without a launcher.*as in `cluster="loopback:2"`'
    with pytest.raises(PlanError, match=message):
        hocket.run(Toy(), distribute="actor_learner", cluster=nodes, iterations=1)
    elsewhere = replace(nodes, launch=replace(plan.launch, name="nobody"))
    with pytest.raises(PlanError, match="unknown launcher `nobody`"):
        hocket.plan(Toy(), distribute="actor_learner", cluster=elsewhere)
