"""The ways to average: which there are, which replicas can choose from, and which are refused."""

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
from hocket.core.plan.device_id import DeviceId, device_ids
from hocket.runtime.averaging import Members, Space, known
from hocket.runtime.averaging.known import AVERAGES, check_averages, choices, find_way, ways
from hocket.runtime.averaging.table import only
from hocket.runtime.launch import launch_named
from hocket.system.registry import Registry
from hocket.system.shared_memory import MemoryFile, pages
from hocket.testing import check_strategy
from tests.front import Hocket
from tests.runtime.averaging.replicas import APART, FOUR, MPS, TWO, asked
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
    # It is last, by its own preference.
    assert list(ways()) == ["shm", "tcp", "ipc", "nccl", "hier", "fifo"]
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


@pytest.mark.parametrize(
    ("names", "wanted", "why"),
    [
        (TWO, "ipc", "it is for a GPU, and these replicas are on a CPU"),
        (["gpu:0", "gpu:0"], "ipc", "run at the same time, as slices cut by `mps`"),
        (["gpu:0/shared:0of2@50%"] * 2, "ipc", "run at the same time, as slices cut by `mps`"),
        ([*MPS, "gpu:1/mps:0of1@100%"], "ipc", "for one GPU, and these replicas are on 2"),
        ([f"gpu:0/mps:{i}of17@5%" for i in range(17)], "ipc", "most 16 replicas, and these are 17"),
        (TWO, "nccl", "one process per device, and these are 2 replicas on 1"),
        (MPS, "nccl", "one process per device, and these are 2 replicas on 1"),
        (TWO, "hier", "all replicas are on one device"),
        (APART, "hier", "every replica has a device of its own"),
        ([*FOUR, "cpu:2"], "hier", "must have equally many replicas, and they have 2, 2, 1"),
    ],
)
def test_a_way_that_cannot_be_had_is_refused_by_name(
    names: list[str], wanted: str, why: str
) -> None:
    with pytest.raises(PlanError, match=f"cannot use `{wanted}` here: .*{why}"):
        choices(Members(device_ids(names)), wanted)


@pytest.mark.parametrize(
    ("names", "tried"),
    [
        (TWO, ["shm"]),
        (APART, ["shm"]),
        (FOUR, ["shm", "hier"]),
        (MPS, ["shm", "ipc"]),
        (["gpu:0", "gpu:1"], ["shm", "nccl"]),
        ([f"gpu:{d}/mps:{i}of2@100%" for d in range(2) for i in range(2)], ["shm", "hier"]),
    ],
)
def test_what_is_worth_measuring(names: list[str], tried: list[str]) -> None:
    assert choices(Members(device_ids(names))) == tried


def test_replicas_that_name_no_device_go_through_the_host() -> None:
    assert choices(Members((None, None))) == ["shm"]


def test_ways_have_an_order_of_their_own() -> None:
    assert list(ways()) == ["shm", "tcp", "ipc", "nccl", "hier"]
    assert [name for name, way in ways().items() if way.name != name] == []


def test_exact_has_no_clock_choose() -> None:
    for names in (FOUR, MPS, ["gpu:0", "gpu:1"]):
        assert asked(names, is_exact=True).choices == ("shm",)
    assert asked(FOUR, "hier", is_exact=True).choices == ("hier",)
    table = only(asked(FOUR, is_exact=True))
    assert table and table.chosen == "shm" and "exact=True forbids a choice by speed" in str(table)


@pytest.mark.parametrize("names", [TWO, APART, FOUR, MPS])
def test_without_memory_that_all_share_only_the_network_is_left(names: list[str]) -> None:
    members = replace(Members(device_ids(names)), shares_memory=False)
    if members.on_host:
        assert choices(members) == choices(members, is_exact=True) == ["tcp"]
    else:
        with pytest.raises(PlanError, match=r"no way to average between these .*they share none"):
            choices(members)
    with pytest.raises(PlanError, match=r"cannot use `shm` here: .*they share none"):
        choices(members, "shm")


def test_a_delay_is_refused_by_who_cannot_add_one() -> None:
    members = replace(Members(device_ids(("gpu:0", "gpu:1"))), delay=0.1)
    assert choices(members) == ["shm"]
    with pytest.raises(PlanError, match="cannot use `nccl` here: it cannot make a mean take"):
        choices(members, "nccl")
    four = tuple(f"gpu:{d}/mps:{i}of2@100%" for d in range(2) for i in range(2))
    with pytest.raises(PlanError, match="one of its steps uses `nccl`: it cannot make a mean"):
        choices(replace(Members(device_ids(four)), delay=0.1), "hier")


def test_the_memory_of_ways_begins_at_pages_and_is_nobody_elses() -> None:
    """A GPU can map only whole pages, and a trial must leave the memory of the way in use zero."""
    for names in (MPS, FOUR):
        averaging = asked(names)
        whole = Space(MemoryFile.create(averaging.nbytes), 0, averaging.nbytes)
        for used in averaging.choices:
            given = [
                averaging.part(used, whole, is_trial=False),
                *(averaging.part(way, whole, is_trial=True) for way in averaging.choices),
            ]
            end = 0
            for space in given:
                assert space and space.offset >= end and space.offset == pages(space.offset)
                end = space.offset + space.nbytes
            assert end <= averaging.nbytes
