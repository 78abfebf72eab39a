"""Nodes as text. A change here is a change that users see."""

from __future__ import annotations

import pytest

from hocket import Plan
from hocket.cluster.devices import ON_NODES
from hocket.core.plan.device_id import device_ids
from hocket.core.plan.nodes import Connection, Crossing, Rates
from hocket.core.plan.text_nodes import devices_text, node_lines, pairs_text, time_text
from tests.core.plan.test_nodes import FOUR, actors

DEVICES = {
    "one": (["n0/cpu:0"], "n0/cpu:0"),
    "several of one": (["n0/cpu:0"] * 8, "n0/cpu:0 x8"),
    "two nodes": (["n0/cpu:0"] * 8 + ["n1/cpu:0"] * 8, "n0/cpu:0 x8, n1/cpu:0 x8"),
    "many nodes": ([f"n{i}/cpu:0" for i in range(8) for _ in range(8)], "n0 to n7: 8 each (cpu:0)"),
    "two each": (
        [f"n{i}/gpu:{k}" for i in range(4) for k in range(4) for _ in range(2)],
        "n0 to n3: 8 each (gpu:0 to gpu:3 x2)",
    ),
    "unequal": (
        ["n0/gpu:0", "n0/gpu:0", "n0/gpu:1", "n1/cpu:0"],
        "n0: 3 (gpu:0 x2, gpu:1), n1/cpu:0",
    ),
}


@pytest.mark.parametrize("name", DEVICES)
def test_devices(name: str) -> None:
    on, text = DEVICES[name]
    assert devices_text(device_ids(on)) == text


def on_nodes(*on: str) -> Plan:
    return actors(*on, launch=ON_NODES)


def lines(plan: Plan, rates: Rates | None = None) -> str:
    return "\n".join(node_lines(plan, rates))


def test_nothing_is_said_of_nodes_without_nodes() -> None:
    assert lines(FOUR) == ""


def test_equal_nodes_share_a_line() -> None:
    plan = on_nodes("n0/cpu:0", "n1/cpu:0", "n2/cpu:0", "b/cpu:0")
    assert (
        lines(plan, {})
        == """\
on 4 nodes:
    n0 to n2: actor each
    b: actor, learner
between nodes, in an iteration:
    n0 to n2 -> b, each        96 B       1 message   not measured
    b -> n0 to n2, each        16 B       1 message   not measured
    most at b: 288 B in, 48 B out
within nodes, in an iteration:
    b       112 B       2 messages"""
    )
    text = str(plan)
    assert "actor x4: act, env  on n0 to n2, b: 1 each (cpu:0)\n" in text
    assert lines(plan) in text and "measured" not in text
    assert "not to be run: the cluster has no launcher\n" in text


def test_one_node_has_nothing_between() -> None:
    assert (
        lines(on_nodes("b/cpu:0"))
        == """\
on 1 node:
    b: actor, learner
nothing crosses between nodes
within nodes, in an iteration:
    b       400 B       2 messages"""
    )


def test_times() -> None:
    three = Connection((("a", "b"), ("c", "b"), ("d", "b")), Crossing(1000, 4, 2))
    rates: Rates = {("a", "b"): (1e-4, 1e6), ("c", "b"): (1e-4, 1e6)}
    assert time_text(three, rates) == "1.2 ms, 1 of 3 not measured"
    assert time_text(three, {}) == "not measured"
    assert time_text(three, rates | {("d", "b"): (1.0, 1e6)}) == "1.2 ms to 2.0 s"
    plan = on_nodes("a/cpu:0")
    assert "a -> b       384 B       1 message   1.4 s\n" in lines(
        plan, {("a", "b"): (1.0, 1000.0)}
    )


PAIRS = {
    "n0 -> n1": [("n0", "n1")],
    "n0 to n2 -> n3, each": [(f"n{i}", "n3") for i in range(3)],
    "between any two of n0 to n2, each way": [
        (f"n{i}", f"n{k}") for i in range(3) for k in range(3) if i != k
    ],
    "2 pairs, such as n0 -> n1, each": [("n0", "n1"), ("n2", "n3")],
    "n0 to n2, each": [(f"n{i}", f"n{i}") for i in range(3)],
}


@pytest.mark.parametrize("text", PAIRS)
def test_pairs(text: str) -> None:
    assert pairs_text(Connection(tuple(PAIRS[text]), Crossing())) == text


def test_many_different_nodes_are_summed_up() -> None:
    """Each node has another number of actors, so no two are alike."""
    on = [f"m{i}x/cpu:0" for i in range(15) for _ in range(i + 1)]
    text = lines(on_nodes(*on[:8], *on[:56]))
    assert text.count("->") == 11 and "more, in all" in text
