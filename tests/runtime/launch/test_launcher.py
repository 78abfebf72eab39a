"""Launchers are found by name, and a plan gets the one that it counts on, or is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.faults import SPLIT
from tests.toys import Toy

import hocket
from hocket import Place, Plan, PlanError, trace
from hocket.core.plan.data import Launch
from hocket.runtime.launch import launch_named, launcher_of
from hocket.runtime.refusals import refuse

OWN = Path(__file__).parents[3] / "examples" / "own_launcher.py"


def planned(launch: Launch) -> Plan:
    return Plan(trace(Toy(), 8), SPLIT, launch=launch)


def test_an_unknown_launcher_is_refused_by_name() -> None:
    message = "unknown launcher `process`. Did you mean `processes`? Known: processes, threads."
    with pytest.raises(ValueError, match=re.escape(message)):
        hocket.plan(Toy(), distribute="actor_learner", launch="process")
    with pytest.raises(PlanError, match=re.escape(message)):
        refuse(planned(Launch("process")))


def test_a_launcher_in_a_file_is_found() -> None:
    launch = launch_named(f"{OWN}:Programs")
    assert not launch.one_process and launch.shares_memory == "none"
    assert type(launcher_of(planned(launch))).__name__ == "Programs"


def test_what_is_no_launcher_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`json:__name__` is no launcher: name a class"):
        launch_named("json:__name__")


def test_a_plan_that_counts_on_what_its_launcher_has_not() -> None:
    launch = replace(launch_named("processes"), shares_memory="all")
    with pytest.raises(PlanError, match=r"the plan counts on .* `processes` offers"):
        refuse(planned(launch))


def test_a_plan_without_a_name_runs_here() -> None:
    assert launcher_of(planned(Launch())).launch == Launch("threads")


def test_whoever_runs_a_plan_refuses_its_devices() -> None:
    """Also where a plan was made by hand, and no strategy or command has looked at it."""
    place = Place("all", ("env", "act", "learn"), on=("cpu:99",))
    with pytest.raises(PlanError, match="the place `all`: unknown device `cpu:99`"):
        hocket.run(Toy(), distribute=lambda graph, cluster: Plan(graph, (place,)), iterations=1)
