"""The calls of `averaged`, the mean over replicas, in a node of a traced step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend.core import JaxprEqn, jaxprs_in_params

from hocket.core.graph.trace import Node
from hocket.core.graph.walk import equations


def uses_averaged(eqn: JaxprEqn) -> bool:
    """Return True if an equation is a call of `averaged`, or contains one at any depth."""
    return any(inner.primitive.name == "averaged" for inner in equations(eqn))


def averages(node: Node) -> list[tuple[int, tuple[Any, ...]]]:
    """Return a pair for each call of `averaged` in a node.

    A pair says how often the call is made in one run of the node, and the shapes of its arrays.
    """
    return list(_averages(node.eqn, lambda params: params["length"]))


def average_sites(node: Node) -> list[tuple[Any, ...]]:
    """Return the array shapes that each call of `averaged` gets in a node's compiled program.

    A call in a loop's body counts as often as it occurs in the compiled program: once, or several
    times if the loop is unrolled.
    """
    calls = _averages(node.eqn, lambda params: min(int(params["unroll"]), params["length"]))
    return [arrays for times, arrays in calls for _ in range(times)]


def _averages(eqn: JaxprEqn, times: Callable[[Any], int]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    if eqn.primitive.name == "averaged":
        avals: list[Any] = [v.aval for v in eqn.invars]
        yield 1, tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals)
    many = times(eqn.params) if eqn.primitive.name == "scan" else 1
    for jaxpr in jaxprs_in_params(eqn.params):
        for inner in jaxpr.eqns:
            yield from ((many * n, arrays) for n, arrays in _averages(inner, times))
