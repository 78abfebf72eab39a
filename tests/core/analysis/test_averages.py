"""The calls of `averaged` in a node: how often, with which arrays, and in how many places."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from hocket import averaged
from hocket.core.analysis.averages import average_sites, averages, uses_averaged
from hocket.core.graph.trace import Node
from tests.core.tiny import NUM_ENVS, State, act, titled, traced

SCALAR, ROWS = (jax.ShapeDtypeStruct(shape, jnp.dtype("float32")) for shape in ((), (NUM_ENVS,)))


def loop(unroll: int) -> Node:
    """Return a loop of six passes, each with one mean of a number and one of a row."""

    def run(s: State) -> tuple[State, State]:
        def one(w: Any, _: None) -> Any:
            return averaged(w + averaged({"row": s["x"], "number": w})["number"]), None

        w, _ = lax.scan(one, s["w"], None, 6, unroll=unroll)
        return {"w": w, "x": act(s["x"])}, {}

    return titled(traced(run, "w x").nodes, "scan")


def test_a_loop_calls_it_in_every_pass() -> None:
    both = (SCALAR, ROWS)  # the leaves of a tree, in the order of their names
    assert sorted(averages(loop(1)), key=str) == sorted([(6, both), (6, (SCALAR,))], key=str)


@pytest.mark.parametrize(("unroll", "times"), [(1, 1), (2, 2), (100, 6)])
def test_an_unrolled_loop_has_it_once_for_each_step_of_a_pass(unroll: int, times: int) -> None:
    sites = average_sites(loop(unroll))
    assert sorted(map(len, sites)) == [1] * times + [2] * times
    assert len(averages(loop(unroll))) == 2  # how often it is called does not change


def test_a_node_without_it_has_none() -> None:
    node = titled(traced(lambda s: ({"x": act(s["x"])}, {}), "x").nodes, "act")
    assert not uses_averaged(node.eqn)
    assert averages(node) == [] == average_sites(node)
    assert uses_averaged(loop(1).eqn)
