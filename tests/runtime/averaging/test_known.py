"""The ways to average and their names, and how an unknown one is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from examples.own_average import Fifo

import hocket as package
from hocket import Mean, Place, Plan, PlanError, check, trace
from hocket.cluster import Cluster
from hocket.core.graph.trace import Graph
from hocket.core.plan.device_id import DeviceId
from hocket.runtime.averaging import Members, known
from hocket.runtime.averaging.known import AVERAGES, check_averages, choices, find_way, ways
from hocket.runtime.launch import launch_named
from hocket.system.registry import Registry
from hocket.testing import check_strategy
from tests.front import Hocket
from tests.toys import Toy

BROKEN = "tests.runtime.averaging.broken"
UNKNOWN = "the replicas of `all`: unknown way to average `shn`. Did you mean `shm`?"


def by_unknown(graph: Graph, cluster: Cluster) -> Plan:
    place = Place("all", ("env", "act", "learn"), replicas=2)
    return Plan(graph, (place,), means={"all": Mean(way="shn")}, launch=launch_named("processes"))


def test_an_unknown_way_is_refused_wherever_a_plan_comes_from(hocket: Hocket) -> None:
    """The refusal comes before anything starts, although core knows no name of a way."""
    for enter in (
        lambda: package.plan(Toy(), distribute=by_unknown),
        lambda: package.run(Toy(), distribute=by_unknown),
        lambda: check_strategy(by_unknown, {"toy": Toy()}, launch=["processes"]),
    ):
        with pytest.raises(PlanError, match=UNKNOWN.replace("?", r"\?")):
            enter()
    for command in ("plan", "train"):
        words = "sliced:slices=2,devices=1,reduce=shn"
        refused = hocket(command, "ppo", "--distribute", words)
        assert refused.code == 2 and UNKNOWN.replace("all", "slice") in refused.err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("no.such.module:Fifo", "there is no module `no.such.module`"),
        ("nowhere.py:Fifo", "there is no file `nowhere.py`"),
        (
            "examples.own_average:Fifi",
            "unknown name `Fifi` in `examples.own_average`. Did you mean",
        ),
        (f"{BROKEN}:Half", "is no way to average: it has no `preference`, `note`, `why_not`, `is_"),
    ],
)
def test_what_is_no_way_is_refused_by_name(name: str, why: str) -> None:
    with pytest.raises(PlanError, match=why):
        find_way(name)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """The registry, with a package installed that brings a way."""
    about = tmp_path / "own-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[hocket.averages]\nfifo = examples.own_average:Fifo\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry = Registry(AVERAGES.kind, AVERAGES.package, "AVERAGE", group=AVERAGES.group)
    monkeypatch.setattr(known, "AVERAGES", registry)
    find_way.cache_clear()
    yield registry
    find_way.cache_clear()


def test_an_installed_package_brings_a_way(installed: Registry) -> None:
    assert list(ways()) == ["shm", "ipc", "nccl", "hier", "fifo"]  # last, by its own preference
    assert isinstance(find_way("fifo"), Fifo)
    assert choices(Members((DeviceId("cpu", 0),) * 2), "fifo") == ["fifo"]


def test_a_way_without_memory_goes_where_ours_do_not() -> None:
    apart = replace(Members((DeviceId("cpu", 0),) * 2), shares_memory=False)
    assert choices(apart, "examples.own_average:Fifo") == ["examples.own_average:Fifo"]


def test_a_mean_of_one_program_takes_no_way() -> None:
    """The plan itself does not refuse: it may get its launcher after it was made."""
    place = Place("all", ("env", "act", "learn"), replicas=2)
    plan = check(Plan(trace(Toy(), 8), (place,), means={"all": Mean(delay=0.1)}))
    with pytest.raises(PlanError, match=r"one program in this process.*launch=\"processes\""):
        check_averages(plan)
    check_averages(replace(plan, launch=launch_named("processes")))
