"""Loops that call the host, in projected programs: whether a compiled loop can do it by itself."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from hocket.core.graph.host_calls import host_call
from hocket.core.graph.trace import Graph, NodeId
from hocket.core.projection.instructions import (
    Compute,
    Host,
    Instruction,
    Receive,
    Repeat,
    Send,
    walk,
)


def uses_host(code: Sequence[Instruction]) -> bool:
    """Whether a program calls host functions."""
    return any(isinstance(step, Host) for step in walk(code))


def host_nodes(code: Sequence[Instruction]) -> Iterator[NodeId]:
    """The nodes of a program that call host functions."""
    return (step.node for step in walk(code) if isinstance(step, Host))


def undriven(graph: Graph, loop: Repeat) -> Compute | None:
    """A driven loop as a segment that calls the host by itself; None if more than that crosses."""
    node = graph.nodes[loop.node]
    ins = set(node.ins) - set(graph.constants)
    crosses = any(isinstance(step, Send | Receive) for step in walk(loop.code))
    if crosses or not ins <= loop.reads:
        return None
    outs = sorted(loop.makes.intersection(node.outs))
    return Compute((loop.node,), tuple(sorted(ins)), tuple(outs))


def calls_inside(graph: Graph, code: Sequence[Instruction], driven: Collection[NodeId]) -> bool:
    """Whether loops can make all calls of a program's own functions, and none is `driven`."""

    def may(step: Instruction) -> bool:
        match step:
            case Host(node):  # a service may be asked from any thread
                call = host_call(graph.nodes[node])
                return call is not None and call.of.service is not None
            case Repeat(node) if uses_host(step.code):
                return node not in driven and undriven(graph, step) is not None
            case _:
                return True

    return all(map(may, code))
