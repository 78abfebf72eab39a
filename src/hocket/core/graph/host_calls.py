"""The host functions of a graph: which nodes call one, and how such a node is taken apart."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.extend.core import JaxprEqn, Literal

from hocket.core.graph.trace import Block, Graph, Loop, Node
from hocket.core.graph.walk import named_by
from hocket.core.program.host import HostFunction, host_p


@dataclass(frozen=True)
class HostCall:
    """A fragment that is nothing but a call of a host function, taken apart."""

    of: HostFunction
    args: tuple[tuple[str, Any], ...]
    outs: tuple[tuple[str, Any], ...]

    def arguments(self, ins: Sequence[Any]) -> list[np.ndarray]:
        return [np.asarray(_value(source, ins, ())) for source in self.args]

    def shapes(self, ins: Sequence[Any]) -> list[tuple[int, ...]]:
        """Of the arguments, where `ins` may be anything that has a shape."""
        return [np.shape(_value(source, ins, ())) for source in self.args]

    def results(self, ins: Sequence[Any], made: Sequence[np.ndarray]) -> list[Any]:
        return [_value(source, ins, made) for source in self.outs]


def host_call(node: Node) -> HostCall | None:
    """The host function that a node only calls; None where it computes something as well."""
    return _read_call(node.eqn) if node.labels else None


def hosts(graph: Graph) -> list[HostFunction]:
    """The host functions of a graph that keep a state of their own, each once."""
    found = (of for node in graph.block.nodes for of in functions(node))
    return list(dict.fromkeys(of for of in found if of.keeps_state and of.service is None))


def functions(node: Node) -> list[HostFunction]:
    """The host functions that a node calls, at any depth."""
    return list(named_by(host_p, node.eqn))


def calls_host(block: Block) -> bool:
    """Whether some fragment of a block, or of a loop in it, is a call of a host function."""
    return any(
        calls_host(node.body) if isinstance(node, Loop) else host_call(node) is not None
        for node in block.nodes
    )


def _read_call(eqn: JaxprEqn) -> HostCall | None:
    if eqn.primitive.name != "jit":
        return None
    closed, numbers = eqn.params["jaxpr"], itertools.count()
    inner = closed.jaxpr
    known: dict[Any, tuple[str, Any]] = {}
    for outer, var in zip(eqn.invars, inner.invars, strict=True):
        is_literal = isinstance(outer, Literal)
        known[var] = ("literal", outer.val) if is_literal else ("in", next(numbers))
    known |= {v: ("literal", c) for v, c in zip(inner.constvars, closed.consts, strict=True)}

    def sources(variables: Sequence[Any]) -> tuple[tuple[str, Any], ...]:
        return tuple(("literal", v.val) if isinstance(v, Literal) else known[v] for v in variables)

    found: tuple[HostFunction, tuple[tuple[str, Any], ...]] | None = None
    for step in inner.eqns:
        if step.primitive.name == "optimization_barrier":
            known |= dict(zip(step.outvars, sources(step.invars), strict=True))
        elif step.primitive is host_p and found is None:
            found = step.params["of"], sources(step.invars)
            known |= {v: ("made", k) for k, v in enumerate(step.outvars)}
        else:
            return None
    return found and HostCall(*found, sources(inner.outvars))


def _value(source: tuple[str, Any], ins: Sequence[Any], made: Sequence[Any]) -> Any:
    kind, x = source
    return x if kind == "literal" else ins[x] if kind == "in" else made[x]
