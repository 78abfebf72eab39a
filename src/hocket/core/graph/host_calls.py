"""The host functions of a graph, and the nodes that call them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from jax.extend import core
from jax.extend.core import JaxprEqn

from hocket.core.graph.trace import Block, Graph, Node
from hocket.core.graph.walk import named_by
from hocket.core.program.host import HostFunction, host_p


class Source(NamedTuple):
    """The origin of a host function's argument, or of a result of the node that calls it."""

    kind: Literal["literal", "in", "made"]
    """The origin: a constant (`literal`), an input of the node (`in`), or a result of the host
    function (`made`)."""
    what: Any
    """The constant itself, or the index of the input or result."""

    def value(self, ins: Sequence[Any], made: Sequence[Any] = ()) -> Any:
        if self.kind == "literal":
            return self.what
        return (ins if self.kind == "in" else made)[self.what]


@dataclass(frozen=True)
class HostCall:
    """A node that is nothing but a host call, with the sources of its arguments and results."""

    of: HostFunction
    args: tuple[Source, ...]
    outs: tuple[Source, ...]

    def arguments(self, ins: Sequence[Any]) -> list[np.ndarray]:
        return [np.asarray(source.value(ins)) for source in self.args]

    def shapes(self, ins: Sequence[Any]) -> list[tuple[int, ...]]:
        """Return the shapes of the call's arguments.

        `ins` are the inputs of the node: arrays, or any objects that have a `shape`.
        """
        return [np.shape(source.value(ins)) for source in self.args]

    def results(self, ins: Sequence[Any], made: Sequence[np.ndarray]) -> list[Any]:
        return [source.value(ins, made) for source in self.outs]


def host_call(node: Node) -> HostCall | None:
    """Return the call that a node consists of; None if it computes something as well."""
    return _read_call(node.eqn) if node.labels else None


def hosts(graph: Graph) -> list[HostFunction]:
    """Return the host functions of a graph that keep a state of their own, each once."""
    called = (of for node in graph.block.nodes for of in functions(node))
    return list(dict.fromkeys(of for of in called if of.keeps_state and of.service is None))


def functions(node: Node) -> list[HostFunction]:
    """Return the host functions that a node calls, at any depth."""
    return list(named_by(host_p, node.eqn))


def calls_host(block: Block) -> bool:
    """Return True if a node of a block, at any depth, is a call of a host function."""
    return any(host_call(node) for node, _ in block.walk())


def _read_call(eqn: JaxprEqn) -> HostCall | None:
    if eqn.primitive.name != "jit":
        return None
    closed, numbers = eqn.params["jaxpr"], itertools.count()
    inner = closed.jaxpr
    known: dict[Any, Source] = {
        var: _literal(outer) or Source("in", next(numbers))
        for outer, var in zip(eqn.invars, inner.invars, strict=True)
    }
    constants = zip(inner.constvars, closed.consts, strict=True)
    known |= {var: Source("literal", value) for var, value in constants}

    def sources(variables: Sequence[Any]) -> tuple[Source, ...]:
        return tuple(_literal(v) or known[v] for v in variables)

    call: tuple[HostFunction, tuple[Source, ...]] | None = None
    for step in inner.eqns:
        if step.primitive.name == "optimization_barrier":  # at both ends of an exact fragment
            known |= dict(zip(step.outvars, sources(step.invars), strict=True))
        elif step.primitive is host_p and call is None:
            call = step.params["of"], sources(step.invars)
            known |= {v: Source("made", k) for k, v in enumerate(step.outvars)}
        else:
            return None
    return call and HostCall(*call, sources(inner.outvars))


def _literal(variable: Any) -> Source | None:
    return Source("literal", variable.val) if isinstance(variable, core.Literal) else None
