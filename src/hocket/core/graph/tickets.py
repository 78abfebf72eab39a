"""The check that a step never needs an old version of what a service keeps.

A step may read an old value of an array again, but a service keeps only its newest content. In the
program, a ticket stands for each version of the content. The check follows these tickets.
"""

from __future__ import annotations

from typing import NoReturn

from hocket.core.graph.host_calls import functions, host_call
from hocket.core.graph.trace import Block, Graph, Loop, Node, ValueId
from hocket.core.program.service import Served, Service, parts
from hocket.errors import ContractError


def check_tickets(graph: Graph) -> None:
    """Refuse a step that could not run if services kept parts of its state.

    In the step, a ticket stands for each version of a service's content. Only the functions of the
    service may use the ticket, and no function may use it after a change has made it old.
    """
    leaves = zip(graph.block.inputs, parts(graph.state), strict=True)
    tickets = {v: x.by for v, x in leaves if isinstance(x, Served)}
    walk = _Walk({v: v for v in tickets}, dict(tickets))
    walk.block(graph.block)
    for v, service in tickets.items():
        root = walk.root.get(graph.next_state[v])
        if root is None or walk.kept[root] != service:
            raise ContractError(
                f"`step` returns a state with a `{graph.values[v].name}` that no function of the "
                f"{service.name} returned. Return the {service.name} that the last such function "
                f"returned."
            )
        if root in walk.changed:
            _refuse_old("the state that `step` returns", service)


class _Walk:
    """Follows tickets through a program, in the order of its equations."""

    def __init__(self, root: dict[ValueId, ValueId], kept: dict[ValueId, Service]) -> None:
        # Several values can stand for one ticket: a loop, for example, gives it a new value inside.
        self.root = root  # value -> the first value that stood for the same ticket
        self.kept = kept
        self.changed: set[ValueId] = set()
        """Tickets that a change has made old: they stand for content that no longer exists."""
        self.fixed: set[ValueId] = set()
        """Tickets that come from outside a loop and are read again in every pass. A change in one
        pass would make such a ticket old for the next pass."""

    def block(self, block: Block) -> None:
        for node in block.nodes:
            if isinstance(node, Loop):
                self._loop(node)
            elif any(v in self.root for v in node.ins):
                self._node(node)

    def _node(self, node: Node) -> None:
        read = {self.root[v] for v in node.ins if v in self.root}
        call, (first, *_) = host_call(node), sorted(read)
        service, where = self.kept[first], f"`{node.title}` at {node.where}"
        if call is None or {self.kept[v] for v in read} != {call.of.service}:
            own = any(of.service == service for of in functions(node))
            why = "does more: move the rest to another fragment" if own else "does not call them"
            raise ContractError(
                f"under this plan a service keeps the {service.name}, and only fragments that do "
                f"nothing but call its functions may use it, but {where} {why}."
            )
        if read & self.changed or (call.of.changes and read & self.fixed):
            _refuse_old(where, service)
        for v, source in zip(node.outs, call.outs, strict=True):
            if source.kind == "in" and node.ins[source.what] in self.root:
                self.root[v] = self.root[node.ins[source.what]]
            elif call.of.changes and source == ("made", 0):
                self.root[v], self.kept[v] = v, service
        if call.of.changes:
            self.changed |= read

    def _loop(self, loop: Loop) -> None:
        for outside, inside in (*loop.consts, *loop.xs):
            if outside in self.root:
                self.root[inside] = self.root[outside]
                self.fixed.add(self.root[outside])
        carried = [c for c in loop.carry if c.first in self.root]
        for c in carried:
            self.root[c.inside], self.kept[c.inside] = c.inside, self.kept[self.root[c.first]]
        self.block(loop.body)
        self.fixed -= {self.root[v] for v in loop.ins if v in self.root}
        for c in carried:
            if self.root.get(c.next) == c.inside:
                self.root[c.after] = self.root[c.first]
            elif c.next in self.root:
                self.root[c.after], self.kept[c.after] = c.after, self.kept[c.inside]
                self.changed.add(self.root[c.first])


def _refuse_old(where: str, service: Service) -> NoReturn:
    raise ContractError(
        f"{where} uses the {service.name} as it was before a change, and a service keeps only the "
        f"newest version: use the {service.name} that the last change returned."
    )
