"""Launchers are found by name. A plan gets the launcher that it counts on, or is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket import Plan, PlanError, trace
from hocket.cluster import Cluster
from hocket.core.plan.data import Launch
from hocket.runtime.launch import launch_named, launcher_of
from hocket.runtime.launch.launchers.loopback import Loopback
from hocket.runtime.launch.watch import InstanceError
from hocket.runtime.refusals import refuse
from hocket.testing import check_launcher
from tests.faults import SPLIT
from tests.toys import Toy

OWN = Path(__file__).parents[3] / "examples" / "own_launcher.py"


def planned(launch: Launch) -> Plan:
    return Plan(trace(Toy(), 8), SPLIT, launch=launch)


def test_an_unknown_launcher_is_refused_by_name() -> None:
    message = "unknown launcher `process`. Did you mean `processes`? Known: hosts, "
    with pytest.raises(ValueError, match=re.escape(message)):
        hocket.plan(Toy(), distribute="actor_learner", launch="process")
    with pytest.raises(PlanError, match=re.escape(message)):
        refuse(planned(Launch("process")))


def test_a_launcher_in_a_file_is_found() -> None:
    launch = launch_named(f"{OWN}:Programs")
    assert not launch.one_process and launch.shares_memory == "none"
    assert type(launcher_of(planned(launch))).__name__ == "Programs"


class Half:
    """A launcher that lacks some methods."""

    launch = Launch("half", one_process=False, one_program=False)

    def why_not(self, plan: Plan) -> str:
        return ""


class Picky(Half):
    def __init__(self, partition: str) -> None:
        self.partition = partition


NO_LAUNCHER = {
    "json:__name__": "`json:__name__` is no launcher: it has no `launch`, `why_not`, `reserve`, ",
    f"{__file__}:Half": "is no launcher: it has no `reserve`, `start`, `release`. `hocket.runtime.",
    f"{__file__}:Picky": "cannot be made: missing a required argument: 'partition'.",
    f"{__file__}:Half:last=3": "has options, and a launcher takes none: leave them out.",
    "mine.py": "processes, ray, threads. Name your own as `module:NAME` or `file.py:NAME`.",
}


@pytest.mark.parametrize("name", NO_LAUNCHER)
def test_what_is_no_launcher_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=re.escape(NO_LAUNCHER[name])):
        launch_named(name)


class Endless:
    """A launcher whose `start` returns something that is not a member."""

    launch = Launch("endless", one_process=False, one_program=False)

    def why_not(self, plan: Plan) -> str:
        return ""

    def reserve(self, seats: Any, seconds: float) -> None: ...

    def start(self, seat: Any, command: Any) -> object:
        return object()

    def release(self) -> None: ...


def test_what_is_no_member_is_refused_before_it_is_needed() -> None:
    launch = launch_named(f"{__file__}:Endless")
    with pytest.raises(InstanceError, match=r"its result for `actor/0` has no `hello`, `po"):
        hocket.run(Toy(), distribute=lambda *_: planned(launch), iterations=1)


def test_a_plan_that_counts_on_what_its_launcher_has_not() -> None:
    launch = replace(launch_named("processes"), shares_memory="all")
    with pytest.raises(PlanError, match=r"the plan was made for .* `processes` now offers"):
        refuse(planned(launch))


def test_a_plan_without_a_name_runs_here() -> None:
    assert launcher_of(planned(Launch())).launch == Launch("threads")


class Wrong(Loopback):
    """A launcher of nodes with a survey that a test makes wrong."""

    def __init__(self) -> None:
        super().__init__("2")

    def survey(self, seconds: float) -> Cluster:
        launch = launch_named(f"{__file__}:{type(self).__name__}")
        return replace(super().survey(seconds), launch=launch)


class Twins(Wrong):
    def survey(self, seconds: float) -> Cluster:
        made = super().survey(seconds)
        return replace(made, nodes=made.nodes[:1] * 2)


class Empty(Wrong):
    def survey(self, seconds: float) -> Cluster:
        made = super().survey(seconds)
        return replace(made, devices=tuple(x for x in made.devices if x.id.node == "n0"))


class Otherwise(Wrong):
    def survey(self, seconds: float) -> Cluster:
        return replace(super().survey(seconds), launch=launch_named("processes"))


class Anywhere(Wrong):
    def host(self, node: str) -> str:
        return ""


WRONG_SURVEYS = {
    "Twins": "finds nodes with different names: found ['n0', 'n0'].",
    "Empty": "finds devices on each node and nowhere else: found ['n0/cpu:0', ",
    "Otherwise": "says how instances run on its nodes: found Launch(name='processes', ",
    "Anywhere": "knows the address of each node: found ['', ''].",
}


@pytest.mark.parametrize("name", WRONG_SURVEYS)
def test_a_launcher_of_nodes_must_survey_them(name: str) -> None:
    """The conformance kit finds what is wrong before it starts anything."""
    message = f"`{__file__}:{name}` must be a launcher that {WRONG_SURVEYS[name]}"
    with pytest.raises(ValueError, match=re.escape(message)):
        check_launcher(f"{__file__}:{name}")
