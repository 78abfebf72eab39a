"""The examples keep the contract; that they learn is in `test_learning.py`."""

from __future__ import annotations

import ast
import inspect
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from examples.own_strategy import wide
from examples.sac import SAC

from hocket import Channel, Place, Plan, make, trace
from hocket.runtime.launch.memory_map import layout
from hocket.testing import SMALL, check_algorithm, check_strategy, check_transport
from tests.front import Hocket


def test_sac() -> None:
    small = SAC(
        env=make("Pendulum-v1"), hidden=(16,), batch_size=16, updates=4, capacity=1024, warmup=16
    )
    check = check_algorithm(small)
    assert not [name for name in check.unchanged if name.startswith("learner")]
    assert len(check.differences) == 3
    assert "replay" in check.refused["two replicas of the whole loop"]


def test_own_strategy(hocket: Hocket) -> None:
    """A strategy of one's own, in 15 lines, gives the fused program's numbers."""
    body = inspect.getsource(inspect.unwrap(wide))
    assert len(body.splitlines()) <= 15
    check = check_strategy(wide(actors=2), {"ppo": SMALL["ppo"]()})
    assert set(check.differences) == {"ppo, threads", "ppo, processes"}
    assert check.moved["ppo"] > 1e-3
    file = inspect.getsourcefile(inspect.unwrap(wide))
    text = hocket.well("plan", "ppo", "--distribute", f"{file}:wide:actors=8,lag=1")
    assert "actor x8" in text and "1 iteration late" in text


OWN_TRANSPORT = Path(__file__).parents[1] / "examples" / "own_transport.py"


def test_own_transport_keeps_the_contract() -> None:
    """Between processes that share no memory, and whatever else is there."""
    check = check_transport(f"{OWN_TRANSPORT}:FIFO")
    assert "processes that share none" in check.passed and len(check.passed) == 4


def test_own_transport_carries_ppo() -> None:
    """As processes, with the fused numbers, and nothing goes through shared memory."""

    def through_fifos(graph: Any, cluster: Any) -> Plan:
        named = Channel(transport=f"{OWN_TRANSPORT}:FIFO")
        places = (
            Place("actor", ("env", "act"), replicas=2),
            Place("learner", ("learn", "gradient", "replay")),
        )
        channels = {"actor -> learner": named, "learner -> actor": named}
        return Plan(graph, places, channels, launch="processes")

    plan = through_fifos(trace(SMALL["ppo"](), 8), None)
    assert not layout(plan).links and layout(replace(plan, channels={})).links
    before = set(Path(tempfile.gettempdir()).glob("hocket-*"))
    check = check_strategy(through_fifos, {"ppo": SMALL["ppo"]()}, launch=("processes",))
    assert check.moved["ppo"] > 1e-3
    assert set(Path(tempfile.gettempdir()).glob("hocket-*")) <= before  # it has left no FIFO


def test_own_transport_needs_the_protocols_alone() -> None:
    imported = [
        node.module for node in ast.walk(ast.parse(OWN_TRANSPORT.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hocket")
    ]  # fmt: skip
    assert imported == ["hocket.runtime.channels", "hocket.system.events"]
