"""The replicas that average: their devices, their memory, and the groups on one device."""

from __future__ import annotations

from typing import Any

import jax
import pytest

from hocket import Mean, Place, Plan, trace
from hocket.core.plan.data import Launch
from hocket.core.plan.device_id import device_ids
from hocket.runtime.averaging import Members
from tests.runtime.averaging.replicas import APART, FOUR, MPS, TWO
from tests.toys import Toy

ALL = ("env", "act", "learn")


def plan_of(on: Any = (), replicas: int = 2, **options: Any) -> Plan:
    place = Place("all", ALL, on, replicas=replicas)
    return Plan(trace(Toy(), 8), (place,), **options)


def test_each_replica_stands_for_the_first_of_its_devices() -> None:
    assert Members.of(plan_of(), "all").on == (None, None)
    assert Members.of(plan_of([f"cpu:{k}" for k in range(4)]), "all").on == device_ids(
        ["cpu:0", "cpu:2"]
    )
    assert Members.of(plan_of(["cpu:3"]), "all").on == device_ids(["cpu:3"] * 2)  # shared


def test_a_plan_says_what_replicas_share_and_how_late_their_mean_is() -> None:
    members = Members.of(plan_of(means={"all": Mean(delay=0.5)}), "all")
    assert (members.shares_memory, members.delay, len(members)) == (True, 0.5, 2)
    assert members.at_once() == Members((None, None))
    far = Launch("far", one_process=False, one_program=False, shares_memory="none")
    assert not Members.of(plan_of(launch=far), "all").shares_memory


@pytest.mark.parametrize(
    ("names", "groups"),
    [(TWO, [(0, 1)]), (APART, [(0,), (1,)]), (FOUR, [(0, 1), (2, 3)]),
     ([*APART, *APART], [(0, 2), (1, 3)])],
)  # fmt: skip
def test_slices_of_one_device_are_one_group(names: list[str], groups: Any) -> None:
    members = Members(device_ids(names))
    assert members.groups == groups
    assert [len(members.some(group).groups) for group in groups] == [1] * len(groups)


def test_replicas_without_a_device_are_one_group_about_which_nothing_is_known() -> None:
    members = Members((None, None))
    assert members.groups == [(0, 1)] and not members.on_host and not members.run_as_one


def test_only_some_slices_may_wait_for_each_other_on_their_device() -> None:
    assert Members(device_ids(MPS)).run_as_one and not Members(device_ids(MPS)).on_host
    mixed = Members(device_ids([*MPS, "gpu:0/shared:0of2@50%"]))
    assert not mixed.run_as_one
    assert Members(device_ids(FOUR)).on_host and not Members((*mixed.on, None)).on_host


def test_a_replica_averages_on_its_own_device() -> None:
    first, _, third, *_ = jax.local_devices()
    members = Members((*device_ids(["cpu:0", "cpu:2"]), None))
    assert [members.device(k) for k in range(3)] == [first, third, first]
