"""Loops that call the host, in the program of a place.

Such a loop is written as `Repeat`, with a `Host` for each call. If no value crosses to or from
another place in the loop, it can run as one compiled program that calls the host by itself.
"""

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
    """Return True if a program calls host functions."""
    return any(isinstance(step, Host) for step in walk(code))


def host_nodes(code: Sequence[Instruction]) -> Iterator[NodeId]:
    """Return the nodes of a program that call host functions."""
    return (step.node for step in walk(code) if isinstance(step, Host))


def undriven(graph: Graph, loop: Repeat) -> Compute | None:
    """Return a loop as one segment that calls the host by itself.

    Return None if values cross to or from another place within the loop.
    """
    node = graph.nodes[loop.node]
    ins = set(node.ins) - set(graph.constants)
    crosses = any(isinstance(step, Send | Receive) for step in walk(loop.code))
    if crosses or not ins <= loop.reads:
        return None
    outs = sorted(loop.makes.intersection(node.outs))
    return Compute((loop.node,), tuple(sorted(ins)), tuple(outs))


def calls_inside(graph: Graph, code: Sequence[Instruction], driven: Collection[NodeId]) -> bool:
    """Return True if compiled loops can make all of a program's calls of host functions.

    A loop in `driven` cannot make its calls, because it is never compiled as a whole. Calls of
    services are ignored, because they can be made from any thread.
    """

    def may(step: Instruction) -> bool:
        match step:
            case Host(node):  # a service can be called from any thread
                call = host_call(graph.nodes[node])
                return call is not None and call.of.service is not None
            case Repeat(node) if uses_host(step.code):
                return node not in driven and undriven(graph, step) is not None
            case _:
                return True

    return all(map(may, code))
