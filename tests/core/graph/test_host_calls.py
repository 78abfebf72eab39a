"""Nodes that do nothing but call a host function, and how their arguments and results are wired."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hocket import fragment
from hocket.core.graph.host_calls import Source, calls_host, functions, host_call, hosts
from hocket.core.graph.trace import Graph, Node
from hocket.core.program.fragment import exact_fragments
from hocket.core.program.host import call_host
from tests.core.tiny import BoxFunction, Doubled, State, act, get, on_host, put, titled, traced

X = np.arange(4, dtype=np.float32)


def node_of(fn: Any, *, exact: bool = False) -> Node:
    """Return the node of a fragment that is a function of one value."""
    called = fragment(role="env", name="called")(fn)

    def run(s: State) -> tuple[State, State]:
        with exact_fragments(exact):
            return {"x": jax.tree.leaves(called(s["x"]))[-1]}, {}

    return titled(traced(run, "x").nodes, "called")


@pytest.mark.parametrize("exact", [False, True])
def test_a_call_knows_where_its_arguments_and_results_come_from(exact: bool) -> None:
    def fn(x: Any) -> Any:
        doubled = call_host(Doubled(), x, jnp.float32(3.0))
        return doubled[1], x, doubled[0]

    call = host_call(node_of(fn, exact=exact))
    assert call and call.of == Doubled()
    assert [source.kind for source in call.args] == ["in", "literal"]
    assert call.outs == (Source("made", 1), Source("in", 0), Source("made", 0))
    assert [float(x.sum()) for x in call.arguments([X])] == [6.0, 3.0]
    assert call.shapes([X]) == [(4,), ()]
    first, second = np.zeros(4), np.ones(())
    assert list(map(id, call.results([X], [first, second]))) == list(map(id, [second, X, first]))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: jnp.sin(x),
        lambda x: call_host(Doubled(), x + 1),
        lambda x: call_host(Doubled(), x)[0] + 1,
        lambda x: call_host(Doubled(), *call_host(Doubled(), x)),
    ],
)
def test_a_node_that_computes_something_as_well_is_no_call(fn: Any) -> None:
    assert host_call(node_of(fn)) is None


def test_functions_are_found_at_any_depth() -> None:
    def looped(x: Any) -> Any:
        return lax.scan(lambda c, _: (call_host(Doubled("inner"), c)[0], None), x, None, 2)[0]

    node = node_of(lambda x: call_host(Doubled("outer"), looped(x)))
    assert functions(node) == [Doubled("inner"), Doubled("outer")]
    assert functions(node_of(jnp.sin)) == []


def test_a_graph_has_each_function_that_keeps_a_state_of_its_own_once() -> None:
    keeper = Doubled("keeper", keeps_state=True)
    step = fragment(role="env", name="step")(lambda x: call_host(keeper, x)[0])

    def run(s: State) -> tuple[State, State]:
        box = put(s["box"], step(step(on_host(s["x"]))))
        return {"x": get(box, s["x"]), "box": box}, {}

    graph = traced(run, "x box", served=True)
    assert {of for node in graph.nodes for of in functions(node)} == {
        keeper, Doubled(), BoxFunction("put"), BoxFunction("get"),
    }  # fmt: skip
    assert hosts(graph) == [keeper]


def test_a_block_calls_the_host_if_a_loop_in_it_does() -> None:
    def graph(fn: Any) -> Graph:
        def run(s: State) -> tuple[State, State]:
            return {"x": lax.scan(lambda x, _: (fn(x), None), s["x"], None, 2)[0]}, {}

        return traced(run, "x")

    assert calls_host(graph(on_host).block)
    assert not calls_host(graph(act).block)
