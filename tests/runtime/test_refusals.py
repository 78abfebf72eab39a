"""Plans that cannot run on this machine are refused before anything starts."""

from __future__ import annotations

import dataclasses
import platform
from typing import Any

import jax
import pytest

import hocket
from hocket import Place, Plan, PlanError, make
from hocket.algorithms import DQN
from hocket.cluster.devices import find_devices
from hocket.core.plan.device_id import device_ids
from hocket.runtime.refusals import refuse
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
        r"there\. Use fewer environments, a smaller replay, or more devices\.$",
    ):
        hocket.plan(large, distribute="anakin:devices=1")
    assert sum(x.nbytes for x in jax.live_arrays()) < before + 2**20


def test_a_device_of_another_node_is_refused() -> None:
    """It must not be taken for a device of this machine."""
    here = platform.node()
    assert find_devices(device_ids([f"{here}/cpu:1"])) == jax.local_devices()[1:2]
    plan = Plan(hocket.plan(Toy()).graph, (Place("all", ALL, on=["n1/cpu:1"]),))
    expected = f"the place `all`: n1/cpu:1 is a device of the node `n1`, and this is `{here}`: use"
    with pytest.raises(PlanError) as found:
        refuse(plan)
    assert str(found.value).startswith(expected)
    with pytest.raises(ValueError, match="n1/gpu:0/mps:0of2@50% is a device of the node `n1`"):
        find_devices(device_ids(["n1/gpu:0/mps:0of2@50%"]))


def test_whoever_runs_a_plan_refuses_its_devices() -> None:
    """That includes a plan made by hand, which no strategy or command has checked."""
    place = Place("all", ("env", "act", "learn"), on=("cpu:99",))
    with pytest.raises(PlanError, match="the place `all`: unknown device `cpu:99`"):
        hocket.run(Toy(), distribute=lambda graph, cluster: Plan(graph, (place,)), iterations=1)
