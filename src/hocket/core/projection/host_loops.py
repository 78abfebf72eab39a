"""Loops that call the host, in projected programs: whether a compiled loop can do it by itself."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from hocket.core.graph.host_calls import host_call
from hocket.core.graph.trace import Graph
from hocket.core.projection.instructions import Compute, Host, Instruction, Receive, Repeat, Send


def uses_host(code: Sequence[Instruction]) -> bool:
    """Whether a program calls host functions."""
    return next(host_nodes(code), None) is not None


def host_nodes(code: Sequence[Instruction]) -> Iterator[int]:
    """The nodes of a program that call host functions."""
    for step in code:
        if isinstance(step, Host):
            yield step.node
        elif isinstance(step, Repeat):
            yield from host_nodes(step.code)


def undriven(graph: Graph, loop: Repeat) -> Compute | None:
    """A driven loop as a segment that calls the host by itself; None if more than that crosses."""
    node = graph.nodes[loop.node]
    ins = set(node.ins) - set(graph.constants)
    if not _stays(loop.code) or not ins <= loop.reads:
        return None
    outs = sorted(loop.makes.intersection(node.outs))
    return Compute((loop.node,), tuple(sorted(ins)), tuple(outs))


def calls_inside(graph: Graph, code: Sequence[Instruction], driven: Collection[int]) -> bool:
    """Whether loops can make all calls of a program's own functions, and none is `driven`."""
    for step in code:
        if isinstance(step, Host):
            call = host_call(graph.nodes[step.node])
            if call is None or call.of.service is None:
                return False
            continue  # a service may be asked from any thread
        if not isinstance(step, Repeat) or not uses_host(step.code):
            continue
        if step.node in driven or not undriven(graph, step):
            return False
    return True


def _stays(code: Sequence[Instruction]) -> bool:
    """Whether a program sends and receives nothing."""
    return all(
        _stays(step.code) if isinstance(step, Repeat) else not isinstance(step, Send | Receive)
        for step in code
    )
