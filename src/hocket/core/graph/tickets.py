"""Who reads the ticket of a service in a step: its own functions, each after the other."""

from __future__ import annotations

from typing import NoReturn

from hocket.core.graph.host_calls import functions, host_call
from hocket.core.graph.trace import Block, Graph, Loop, Node
from hocket.core.program.service import Served, Service, parts
from hocket.errors import ContractError


def check_tickets(graph: Graph) -> None:
    """Refuse a step that does with what a service keeps what only a value could be used for.

    Something else reads it, or it is used as it was before a change.
    """
    pairs = list(zip(graph.block.inputs, parts(graph.state), strict=True))
    tickets = {v: x.by for v, x in pairs if isinstance(x, Served)}
    walk = _Walk({v: v for v in tickets}, dict(tickets))
    walk.block(graph.block)
    for v, out in zip(graph.block.inputs, graph.block.outputs, strict=False):
        if v in tickets and walk.kept.get(walk.root.get(out, -1)) != tickets[v]:
            raise ContractError(
                f"`step` returns something else as `{graph.values[v].name}` of the state than what "
                f"the functions of the {tickets[v].name} gave it."
            )
        if v in tickets and walk.root[out] in walk.changed:
            _refuse_old("the state that `step` returns", tickets[v])


class _Walk:
    """Follows tickets through a program, in its order."""

    def __init__(self, root: dict[int, int], kept: dict[int, Service]) -> None:
        self.root = root  # a ticket may have several names: after a loop that only passed it on
        self.kept = kept
        self.changed: set[int] = set()
        """Those that are of the past: something was changed with them."""
        self.fixed: set[int] = set()
        """Those that a loop reads anew each time round."""

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
            why = "does more than that: take the rest out of it" if own else "is none of these"
            raise ContractError(
                f"a service keeps the {service.name} under this plan, so only fragments that call "
                f"its functions, and nothing else, may read it; {where} {why}."
            )
        if read & self.changed or (call.of.changes and read & self.fixed):
            _refuse_old(where, service)
        for v, (kind, k) in zip(node.outs, call.outs, strict=True):
            if kind == "in" and node.ins[k] in self.root:
                self.root[v] = self.root[node.ins[k]]
            elif call.of.changes and (kind, k) == ("made", 0):
                self.root[v], self.kept[v] = v, service
        if call.of.changes:
            self.changed |= read

    def _loop(self, loop: Loop) -> None:
        consts, carry, xs = loop.parts()
        for part in (consts, xs):
            for outer, inner in zip(loop.ins[part], loop.body.inputs[part], strict=True):
                if outer in self.root:
                    self.root[inner] = self.root[outer]
                    self.fixed.add(self.root[outer])
        firsts = list(zip(loop.ins[carry], loop.body.inputs[carry], strict=True))
        for outer, inner in firsts:
            if outer in self.root:
                self.root[inner], self.kept[inner] = inner, self.kept[self.root[outer]]
        self.block(loop.body)
        self.fixed -= {self.root[v] for v in loop.ins if v in self.root}
        ends = zip(firsts, loop.body.outputs, loop.outs, strict=False)
        for (outer, inner), last, after in ends:
            if outer not in self.root or last not in self.root:
                continue
            if self.root[last] == inner:
                self.root[after] = self.root[outer]
            else:
                self.root[after], self.kept[after] = after, self.kept[inner]
                self.changed.add(self.root[outer])


def _refuse_old(where: str, service: Service) -> NoReturn:
    raise ContractError(
        f"{where} uses the {service.name} as it was before something was changed in it, and a "
        f"service keeps it only as it is now: use what the function that changed it returned."
    )
