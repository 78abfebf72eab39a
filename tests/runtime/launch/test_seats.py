"""The processes of a plan: their devices, their cores and their environments."""

from __future__ import annotations

import functools
import os
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from hocket import Place, Plan, trace
from hocket.cluster import Device
from hocket.cluster.slices import Slice, Slices
from hocket.cluster.slices.mps import Mps
from hocket.cluster.slices.shared import Shared
from hocket.core.plan.device_id import DeviceId, device_ids
from hocket.runtime.launch import Seat, launch_named, seats
from hocket.runtime.launch.seats import environment_of, others_on_gpu, seats_of, uses_accelerator
from tests.toys import Toy

GPU = Device(DeviceId("gpu", 1), "NVIDIA H200")
EVERYTHING = ("env", "act", "learn")
graph = functools.cache(lambda: trace(Toy(), 8))


def plan_of(*places: Place, flags: str = "") -> Plan:
    return Plan(graph(), places, launch=launch_named("processes"), compiler_flags=flags)


def test_every_instance_has_a_seat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas, which are busy at once, share the cores; a place that is busy in turn has all."""
    monkeypatch.setattr(seats, "usable_cores", lambda: 5)
    two, one = device_ids(["cpu:0", "cpu:1"]), device_ids(["cpu:2"])
    plan = plan_of(
        Place("env", ("env",), on=two, replicas=2), Place("act", ("act",), on=one, replicas=8),
        Place("learner", ("learn",)),
    )  # fmt: skip
    first, second, *rest, last = seats_of(plan)
    assert first == Seat("env/0", ("env/0",), two[:1], cores=2)
    assert second == Seat("env/1", ("env/1",), two[1:], cores=2)
    assert [seat.name for seat in rest] == [f"act/{k}" for k in range(8)]
    assert {(seat.devices, seat.cores) for seat in rest} == {(one, 1)}
    assert last == Seat("learner/0", ("learner/0",), (), cores=5)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of the user, with these two variables alone."""
    own: dict[str, str] = {"JAX_PLATFORMS": "cuda,cpu", "MINE": "1"}
    monkeypatch.setattr(os, "environ", own)
    return own


def env_of(plan: Plan, seat: Seat, slices: Any = None) -> dict[str, str]:
    return environment_of(plan, seat, slices or Slices(()))


def test_what_the_user_has_set_wins(environment: dict[str, str]) -> None:
    plan, seat = plan_of(Place("all", EVERYTHING)), Seat("all/0", ("all/0",), cores=3)
    assert env_of(plan, seat) == {
        **environment, "PJRT_NPROC": "3", "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }  # fmt: skip
    environment["PJRT_NPROC"] = "7"
    assert env_of(plan, seat)["PJRT_NPROC"] == "7"


@pytest.mark.usefixtures("environment")
def test_a_process_on_the_host_does_not_open_the_accelerator() -> None:
    plan = plan_of(Place("all", EVERYTHING))
    for on, platforms in ((["cpu:0"], "cpu"), (["cpu:0", "gpu:0"], "cuda,cpu"), ([], "cuda,cpu")):
        seat = Seat("all/0", ("all/0",), device_ids(on))
        assert env_of(plan, seat)["JAX_PLATFORMS"] == platforms


def test_flags_of_the_plan_come_after_those_of_the_user(environment: dict[str, str]) -> None:
    plan, seat = plan_of(Place("all", EVERYTHING), flags="--xla_plan"), Seat("all/0", ("all/0",))
    assert env_of(plan, seat)["XLA_FLAGS"] == "--xla_plan"
    environment["XLA_FLAGS"] = "--xla_user"
    assert env_of(plan, seat)["XLA_FLAGS"] == "--xla_user --xla_plan"


@pytest.mark.usefixtures("environment")
def test_a_slice_sets_and_unsets() -> None:
    slices = SimpleNamespace(env=lambda device: {"MINE": None, "SLICE": str(device)})
    seat = Seat("all/0", ("all/0",), device_ids(["gpu:1"]))
    env = env_of(plan_of(Place("all", EVERYTHING)), seat, slices)
    assert env["SLICE"] == "gpu:1" and "MINE" not in env


@pytest.mark.parametrize(
    ("on", "default", "uses"),
    [
        (["cpu:0", "cpu:1"], "gpu", False), (["cpu:0", "gpu:0"], "cpu", True),
        ([], "cpu", False), ([], "gpu", True),
    ],
)  # fmt: skip
def test_which_plans_use_an_accelerator(
    on: list[str], default: str, uses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: default)
    places = Place("actor", ("env", "act"), on=["cpu:3"]), Place("learner", ("learn",), on=on)
    assert uses_accelerator(plan_of(*places)) == uses


def test_an_error_says_who_shares_a_gpu() -> None:
    """Only under MPS, because otherwise a fault of one process does not reach the others."""

    def on(*parts: Slice) -> Plan:
        place = Place("slice", ("env", "act", "learn"), parts, replicas=len(parts))
        return plan_of(place)

    there = (Device(DeviceId("gpu", 0), ""), GPU)
    four = [part for device in there for part in Mps().layout(device, 2, None)]
    assert others_on_gpu(on(*four), "slice/3") == (
        "(it shares gpu:1 with slice/2: a fault of one client of MPS reaches all.)"
    )
    assert others_on_gpu(on(*Shared().layout(GPU, 2, None)), "slice/1") == ""
