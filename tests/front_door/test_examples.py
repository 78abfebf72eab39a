"""The examples keep their contracts. `test_learning.py` tests that they learn."""

from __future__ import annotations

import ast
import csv
import inspect
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import examples.own_average
import jax
import pytest
from examples.own_launcher import Programs
from examples.own_logger import Table
from examples.own_strategy import wide
from examples.sac import SAC
from tests.cases import graph_of
from tests.front import Hocket

import hocket as package
from hocket import Channel, Mean, Place, Plan, make
from hocket.cluster import Cluster
from hocket.core.graph.trace import Graph
from hocket.runtime.executor import advance
from hocket.runtime.launch import launch_named
from hocket.runtime.launch.memory import memory_map
from hocket.strategies import resolve
from hocket.testing import (
    SMALL,
    check_algorithm,
    check_average,
    check_launcher,
    check_logger,
    check_strategy,
    check_transport,
    difference,
)
from hocket.training.loop import make_executor

FIFO = f"{Path(examples.own_average.__file__)}:Fifo"


def test_sac() -> None:
    small = SAC(
        env=make("Pendulum-v1"), hidden=(16,), batch_size=16, updates=4, capacity=1024, warmup=16
    )
    check = check_algorithm(small)
    assert not [name for name in check.unchanged if name.startswith("learner")]
    assert len(check.differences) == 3
    assert "replay" in check.refused["two replicas of the whole loop"]


@pytest.mark.usefixtures("forks")
def test_own_strategy(hocket: Hocket) -> None:
    """The example of a strategy, in 15 lines, gives the fused program's numbers."""
    body = inspect.getsource(inspect.unwrap(wide))
    assert len(body.splitlines()) <= 15
    check = check_strategy(wide(actors=2), {"ppo": SMALL["ppo"]()})
    assert set(check.differences) == {"ppo, threads", "ppo, processes"}
    assert check.moved["ppo"] > 1e-3
    file = inspect.getsourcefile(inspect.unwrap(wide))
    text = hocket.well("plan", "ppo", "--distribute", f"{file}:wide:actors=8,lag=1")
    assert "actor x8" in text and "1 iteration late" in text


def test_own_launcher(hocket: Hocket) -> None:
    """The example of a launcher keeps the contract, and a run under it has the fused numbers."""
    file = inspect.getsourcefile(Programs)
    check = check_launcher(f"{file}:Programs")
    assert len(check.differences) == 2 and max(check.differences.values()) <= 1e-5
    assert len(check.tried) == 8
    text = hocket.well("plan", "ppo", "--launch", f"{file}:Programs")
    assert f"launched as {file}:Programs" in text


@pytest.mark.parametrize("launcher", ["threads", "processes", "loopback:2"])
def test_our_launchers(launcher: str) -> None:
    check = check_launcher(launcher)
    assert max(check.differences.values()) <= 1e-5 and len(check.differences) == 2


def test_own_logger(hocket: Hocket) -> None:
    """The example of a logger imports only the Protocol from hocket, and keeps every row."""
    file = Path(inspect.getsourcefile(Table) or "")
    ours = [
        node.module
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hocket")
    ]
    assert ours == ["hocket.report.loggers", "hocket.testing"]
    assert check_logger(Table).files == ("numbers.csv",)
    flags = ("--num-envs", "8", "--length", "16", "--hidden", "8", "--minibatches", "2")
    hocket.well(
        "train", "ppo", *flags, "--env-steps", "1280", "--seeds", "2", "--seed", "7", "--quiet",
        "--name", "own", "--loggers", f"{file}:Table:file=all.csv",
    )  # fmt: skip
    lines = list(csv.reader(Path("runs/own/all.csv").read_text().splitlines()))
    for index, seed in enumerate((7, 8)):
        text = Path(f"runs/own/seed-{index}/metrics.jsonl").read_text()
        told = {row["env_steps"]: row["policy_loss"] for row in map(json.loads, text.splitlines())}
        kept = {int(x[0]): float(x[3]) for x in lines if x[1:3] == [str(seed), "policy_loss"]}
        assert kept == told and len(told) == 10


def by_fifo(graph: Graph, cluster: Cluster) -> Plan:
    """Place `data_parallel` as processes, which average through named FIFOs."""
    made = resolve("data_parallel")(graph, cluster)
    return replace(made, launch=launch_named("processes"), means={"replica": Mean(way=FIFO)})


@pytest.mark.usefixtures("forks")
def test_own_average() -> None:
    """The example of a way to average gives the fused program's numbers, and keeps its contract."""
    ppo, fused = SMALL["ppo"](), "anakin:devices=1"
    *_, report = package.iterate(ppo, num_envs=8, iterations=3, distribute=by_fifo)
    expected = package.run(ppo, num_envs=8, iterations=3, distribute=fused).state
    assert difference(report.state, expected) < 1e-5
    table = report.executor.reductions()["replica"]
    assert table.chosen == FIFO and "`shm`" not in table.sentence
    assert "through named FIFOs (not measured: " in str(table)
    checked = check_average(FIFO)
    assert checked.room == 0 and checked.difference == 0
    ours = {name for name in imported(FIFO.removesuffix(":Fifo")) if name.startswith("hocket")}
    assert ours == {"hocket.runtime.averaging"}


def imported(file: str) -> set[str]:
    """Return the modules that a file imports."""
    nodes = list(ast.walk(ast.parse(Path(file).read_text())))
    whole = {alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names}
    return whole | {n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)}


def test_own_average_in_words(hocket: Hocket) -> None:
    text = hocket.well("plan", "ppo", "--distribute", f"sliced:slices=2,devices=1,reduce={FIFO}")
    assert "slice x2" in text


OWN_TRANSPORT = Path(__file__).parents[2] / "examples" / "own_transport.py"


def test_own_transport_keeps_the_contract() -> None:
    """It works between processes that share no memory, and between all other pairs of ends."""
    check = check_transport(f"{OWN_TRANSPORT}:FIFO")
    assert "processes that share none" in check.passed and len(check.passed) == 4


@pytest.mark.usefixtures("forks")
def test_own_transport_carries_ppo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PPO runs as processes with the fused numbers, and nothing goes through shared memory."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)  # forget the folder that was looked up before

    def through_fifos(graph: Any, cluster: Any) -> Plan:
        named = Channel(transport=f"{OWN_TRANSPORT}:FIFO")
        places = (
            Place("actor", ("env", "act"), replicas=2),
            Place("learner", ("learn", "gradient", "replay")),
        )
        channels = {"actor -> learner": named, "learner -> actor": named}
        return Plan(graph, places, channels, launch=launch_named("processes"))

    plan = through_fifos(graph_of("ppo"), None)
    assert not memory_map(plan).links and memory_map(replace(plan, channels={})).links
    check = check_strategy(through_fifos, {"ppo": SMALL["ppo"]()}, launch=("processes",))
    assert check.moved["ppo"] > 1e-3
    assert tempfile.gettempdir() == str(tmp_path)
    assert not list(tmp_path.glob("hocket-*"))  # it has left no FIFO


def test_own_transport_needs_the_protocols_alone() -> None:
    imported = [
        node.module for node in ast.walk(ast.parse(OWN_TRANSPORT.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hocket")
    ]  # fmt: skip
    assert imported == ["hocket.runtime.channels", "hocket.system.events"]


def test_everything_of_ones_own_together() -> None:
    """A launcher without shared memory, and messages and means through FIFOs: the fused numbers."""
    launch = launch_named(f"{inspect.getsourcefile(Programs)}:Programs")
    graph = graph_of("ppo")
    fifo = Channel(transport=f"{OWN_TRANSPORT}:FIFO")
    apart = (
        Place("actor", ("env", "act"), replicas=2),
        Place("learner", ("learn",), replicas=2),
    )
    channels = {
        "actor -> learner": fifo,
        "learner -> actor": fifo,
    }
    plan = Plan(graph, apart, channels, {"learner": Mean(way=FIFO)}, launch=launch)
    whole = Plan(graph, (Place("all", ("env", "act", "learn")),))
    states = []
    for made in (plan, whole):
        executor = make_executor(made, 3)
        executor.start(jax.random.key(0))
        advance(executor, 3)
        states.append(executor.state())
        executor.close()
    assert difference(*states) < 1e-5
