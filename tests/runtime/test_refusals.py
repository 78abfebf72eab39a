"""Plans that cannot run on this machine are refused before anything starts."""

from __future__ import annotations

import dataclasses
import platform
from dataclasses import replace
from typing import Any

import jax
import pytest

import hocket
from hocket import Channel, Mean, Place, Plan, PlanError, make, trace
from hocket.algorithms import DQN
from hocket.cluster.devices import ON_NODES, find_devices
from hocket.core.plan.data import Launch
from hocket.core.plan.device_id import device_ids
from hocket.core.plan.memory import footprint
from hocket.runtime import refusals
from hocket.runtime.launch import launch_named
from hocket.runtime.refusals import refuse
from hocket.system.text import bytes_text
from tests.clusters import cluster, node
from tests.toys import Toy

ALL = ("env", "act", "learn")
ACTOR, LEARNER = Place("actor", ALL[:2]), Place("learner", ALL[2:])


def test_a_device_that_is_not_there() -> None:
    def elsewhere(graph: Any, cluster: Any) -> Plan:
        return Plan(graph, (dataclasses.replace(ACTOR, on=["tpu:0"]), LEARNER))

    with pytest.raises(PlanError, match=r"^the place `actor`: unknown device `tpu:0`\..*cpu:0"):
        hocket.plan(Toy(), distribute=elsewhere)


def test_more_memory_than_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of that memory is allocated to find it out."""
    large = DQN(env=make("CartPole-v1"), capacity=2**29)
    monkeypatch.setattr("hocket.runtime.refusals.host_memory", lambda: 16 * 2**30)
    before = sum(x.nbytes for x in jax.live_arrays())
    with pytest.raises(
        PlanError,
        match=r"^this machine has 16\.0 GiB of memory, and this plan needs at least \d+\.\d GiB "
        r"there\. Use fewer environments or a smaller replay\.$",
    ):
        hocket.plan(large, distribute="anakin:devices=1")
    assert sum(x.nbytes for x in jax.live_arrays()) < before + 2**20


def test_a_device_of_another_node_is_refused() -> None:
    """It must not be taken for a device of this machine."""
    here = platform.node()
    assert find_devices(device_ids([f"{here}/cpu:1"])) == jax.local_devices()[1:2]
    plan = Plan(hocket.plan(Toy()).graph, (Place("all", ALL, on=["n1/cpu:1"]),))
    expected = (
        f"the place `all`: n1/cpu:1 is a device of the node `n1`, but this node is `{here}`: use"
    )
    with pytest.raises(PlanError) as raised:
        refuse(plan)
    assert str(raised.value).startswith(expected)
    with pytest.raises(ValueError, match="n1/gpu:0/mps:0of2@50% is a device of the node `n1`"):
        find_devices(device_ids(["n1/gpu:0/mps:0of2@50%"]))


def test_whoever_runs_a_plan_refuses_its_devices() -> None:
    """That includes a plan made by hand, which no strategy or command has checked."""
    place = Place("all", ("env", "act", "learn"), on=("cpu:99",))
    with pytest.raises(PlanError, match="the place `all`: unknown device `cpu:99`"):
        hocket.run(Toy(), distribute=lambda graph, cluster: Plan(graph, (place,)), iterations=1)


class Gpu:
    """A device with memory of its own."""

    def __init__(self, name: str, limit: int | None) -> None:
        self.id, self.platform, self.limit = name, "gpu", limit

    def memory_stats(self) -> dict[str, int] | None:
        return None if self.limit is None else {"bytes_limit": self.limit}


def needed(place: Place) -> int:
    """Return the bytes that a place needs on each of its devices."""
    memory = footprint(Plan(trace(Toy(), 8), (place,)))[place.name]
    return memory.peak + memory.messages


def test_all_devices_of_the_host_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(trace(Toy(), 8), (replace(ACTOR, on=["cpu:0"]), replace(LEARNER, on=["cpu:1"])))
    total = sum(x.peak + x.messages for x in footprint(plan).values())
    monkeypatch.setattr(refusals, "host_memory", lambda: total)
    refuse(plan)
    monkeypatch.setattr(refusals, "host_memory", lambda: total - 1)
    with pytest.raises(PlanError, match=r"^this machine has .* of memory, and this plan needs at"):
        refuse(plan)


def test_a_gpu_has_memory_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it does not say how much, nothing can be refused."""
    everything = Place("all", ALL)
    nbytes, plan = needed(everything), Plan(trace(Toy(), 8), (everything,))
    monkeypatch.setattr(refusals, "host_memory", lambda: 0)
    monkeypatch.setattr(refusals, "id_of", lambda device: device.id)
    for limit in (nbytes, None):
        monkeypatch.setattr(refusals, "find_devices", lambda _, limit=limit: [Gpu("gpu:3", limit)])
        refuse(plan)
    monkeypatch.setattr(refusals, "find_devices", lambda _: [Gpu("gpu:3", nbytes - 1)])
    with pytest.raises(PlanError, match=r"^gpu:3 has .* of memory, and this plan needs at least"):
        refuse(plan)


def test_unknown_memory_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "host_memory", lambda: None)
    refuse(Plan(trace(Toy(), 8), (ACTOR, LEARNER)))


REFUSED: dict[str, tuple[tuple[Place, ...], dict[str, Any]]] = {
    "launcher `thread`": ((ACTOR, LEARNER), {"launch": Launch("thread")}),
    "transport `pigeon`": (
        (ACTOR, LEARNER), {"channels": {"actor -> learner": Channel(transport="pigeon")}},
    ),
    "way to average `wish`": (
        (Place("all", ALL, replicas=2),),
        {"means": {"all": Mean(way="wish")}, "launch": launch_named("processes")},
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_every_part_of_a_plan_is_looked_at(what: str) -> None:
    places, options = REFUSED[what]
    with pytest.raises(PlanError, match=f"unknown {what}"):
        refuse(Plan(trace(Toy(), 8), places, **options))


NODES = cluster(node("n0", memory=2**20), node("n1", gpus=2))

NOT_THERE = {
    "n0/cpu:1": "there is no n0/cpu:1. The node `n0` has n0/cpu:0.",
    "n1/gpu:2": "there is no n1/gpu:2. The node `n1` has n1/gpu:0, n1/gpu:1.",
    "n2/cpu:0": "n2/cpu:0 is on no node of this cluster, which has n0, n1.",
}


@pytest.mark.parametrize("device", NOT_THERE)
def test_a_device_that_a_cluster_has_not(device: str) -> None:
    def elsewhere(graph: Any, cluster: Any) -> Plan:
        learner = replace(LEARNER, on=device_ids(["n0/cpu:0"]))
        return Plan(graph, (replace(ACTOR, on=device_ids([device])), learner), launch=ON_NODES)

    with pytest.raises(PlanError) as raised:
        hocket.plan(Toy(), distribute=elsewhere, cluster=NODES)
    assert str(raised.value) == f"the place `actor`: {NOT_THERE[device]}"


def on(actor: str, learner: str) -> Plan:
    """A plan of two actors, where each actor is of the same size."""
    actors = replace(ACTOR, on=device_ids([actor] * 2), replicas=2)
    places = (actors, replace(LEARNER, on=device_ids([learner])))
    return Plan(trace(Toy(), 8), places, launch=ON_NODES)


def test_what_a_node_runs_shares_its_memory() -> None:
    """All CPU devices of a node share it, and so does the host of a node with accelerators."""
    plan, rooms = on("n0/cpu:0", "n0/cpu:0"), footprint(on("n0/cpu:0", "n0/cpu:0"))
    actor, learner = (rooms[name].peak + rooms[name].messages for name in ("actor", "learner"))
    total = 2 * actor + learner
    refuse(plan, cluster(node("n0", memory=total), node("n1", memory=1)))
    expected = (
        rf"^the node `n0` has .* of memory, and this plan needs at least .* there "
        rf"\(`learner` {bytes_text(learner)}, `actor` {bytes_text(2 * actor)}\)\. Use fewer"
    )
    with pytest.raises(PlanError, match=expected):
        refuse(plan, cluster(node("n0", memory=total - 1)))
    hosts = on("n1/cpu:0", "n0/cpu:0")
    refuse(hosts, cluster(node("n0"), node("n1", gpus=1)))
    with pytest.raises(PlanError, match=r"^the node `n1` has "):
        refuse(hosts, cluster(node("n0"), node("n1", gpus=1, memory=2 * actor - 1)))


def test_each_accelerator_of_a_node_has_memory_of_its_own() -> None:
    learner = footprint(on("n1/gpu:0", "n1/gpu:1"))["learner"]
    (one, devices) = node("n1", gpus=2)
    small = replace(devices[1], memory=learner.peak + learner.messages - 1)
    refuse(on("n1/gpu:0", "n1/gpu:0"), cluster((one, [devices[0], small])))
    with pytest.raises(PlanError, match=r"^n1/gpu:1 has .* of memory"):
        refuse(on("n1/gpu:0", "n1/gpu:1"), cluster((one, [devices[0], small])))


def test_unknown_memory_of_a_node_refuses_nothing() -> None:
    refuse(on("n0/cpu:0", "n0/cpu:0"), cluster(node("n0", memory=None)))
