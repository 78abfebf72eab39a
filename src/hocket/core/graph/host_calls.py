"""The host functions of a graph: which nodes call one, and how such a node is taken apart."""

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
    """Where an argument or a result comes from."""

    kind: Literal["literal", "in", "made"]
    """A number of the program, an input of the node, or a result of the host function."""
    what: Any
    """The number itself, else the index among the inputs or the results."""

    def value(self, ins: Sequence[Any], made: Sequence[Any] = ()) -> Any:
        if self.kind == "literal":
            return self.what
        return (ins if self.kind == "in" else made)[self.what]


@dataclass(frozen=True)
class HostCall:
    """A fragment that is nothing but a call of a host function, taken apart."""

    of: HostFunction
    args: tuple[Source, ...]
    outs: tuple[Source, ...]

    def arguments(self, ins: Sequence[Any]) -> list[np.ndarray]:
        return [np.asarray(source.value(ins)) for source in self.args]

    def shapes(self, ins: Sequence[Any]) -> list[tuple[int, ...]]:
        """Of the arguments, where `ins` may be anything that has a shape."""
        return [np.shape(source.value(ins)) for source in self.args]

    def results(self, ins: Sequence[Any], made: Sequence[np.ndarray]) -> list[Any]:
        return [source.value(ins, made) for source in self.outs]


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
    return any(host_call(node) for node, _ in block.walk())


def _read_call(eqn: JaxprEqn) -> HostCall | None:
    if eqn.primitive.name != "jit":
        return None
    closed, numbers = eqn.params["jaxpr"], itertools.count()
    inner = closed.jaxpr
    known: dict[Any, Source] = {}
    for outer, var in zip(eqn.invars, inner.invars, strict=True):
        known[var] = _literal(outer) or Source("in", next(numbers))
    for var, constant in zip(inner.constvars, closed.consts, strict=True):
        known[var] = Source("literal", constant)

    def sources(variables: Sequence[Any]) -> tuple[Source, ...]:
        return tuple(_literal(v) or known[v] for v in variables)

    found: tuple[HostFunction, tuple[Source, ...]] | None = None
    for step in inner.eqns:
        if step.primitive.name == "optimization_barrier":
            known |= dict(zip(step.outvars, sources(step.invars), strict=True))
        elif step.primitive is host_p and found is None:
            found = step.params["of"], sources(step.invars)
            known |= {v: Source("made", k) for k, v in enumerate(step.outvars)}
        else:
            return None
    return found and HostCall(*found, sources(inner.outvars))


def _literal(variable: Any) -> Source | None:
    return Source("literal", variable.val) if isinstance(variable, core.Literal) else None
