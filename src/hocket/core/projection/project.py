"""Projection: from one program for all places to one program for each.

Every place runs its own equations, and sends and receives where a value crosses. Each program is a
subsequence of the same order, a value is sent as soon as its segment has run, and received just
before it is needed; so with room for one message in each transfer no two places can wait for each
other.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hocket.core.graph.host_calls import host_call
from hocket.core.graph.trace import Block, Graph, Loop, Node
from hocket.core.projection.instructions import (
    Compute,
    Host,
    Instruction,
    Projection,
    Receive,
    Repeat,
    Send,
    Transfer,
)
from hocket.core.projection.placement import Placement


def project(
    graph: Graph,
    where: Mapping[str, str],
    places: Mapping[str, int],
    reporter: str | None = None,
) -> Projection:
    """Project `graph` onto `places` (name to replicas), its fragments placed by `where`.

    All metrics go to the place `reporter`, if one is named.
    """
    placement = Placement(graph, where, places, reporter)
    emitter = _Emitter(graph, placement)
    homes = {v: {placement.home[v]} for v in graph.block.inputs}
    streams = emitter.block(graph.block, places, homes)
    ends = dict(zip(graph.block.outputs, graph.block.inputs, strict=False))
    programs = {}
    for place, stream in streams.items():
        mine = {out for out, v in ends.items() if placement.home.get(v) == place}
        mine |= {out for out, at in placement.reports.items() if at == place}
        held = {v for v in graph.block.inputs if placement.home[v] == place}
        elsewhere = _seen_by_others(stream.code) | set(graph.block.outputs[graph.num_leaves :])
        own = {v for v in held if placement.carried[v] not in elsewhere}
        programs[place] = _with_liveness(graph, stream.code, mine, own)
    return Projection(placement, programs, tuple(emitter.transfers))


@dataclass
class _Stream:
    """What one place does in one block, while it is being written."""

    code: list[Instruction] = field(default_factory=list)
    open: list[int] = field(default_factory=list)
    has: set[int] = field(default_factory=set)
    late: set[int] = field(default_factory=set)
    """What is made since the last call of the host, and by it."""

    def flush(self) -> None:
        if self.open:
            self.code.append(Compute(tuple(self.open)))
            self.open = []

    def make(self, node: Node) -> None:
        """Run a node, before the last call of the host if it can: a program less to start."""
        match self.code:
            case [*_, Compute(nodes), Host()] if self.late.isdisjoint(node.ins):
                self.code[-2] = Compute((*nodes, node.id))
            case _:
                self.open.append(node.id)
                self.late |= set(node.outs)

    def call(self, node: Node) -> None:
        """Call the host."""
        self.flush()
        self.code.append(Host(node.id, node.ins, node.outs))
        self.late = set(node.outs)


class _Emitter:
    """Writes the programs of all places together, so that every send has its receive."""

    def __init__(self, graph: Graph, placement: Placement) -> None:
        self.graph = graph
        self.placement = placement
        self.transfers: list[Transfer] = []
        self.free = {v: n for n in graph.nodes if placement.is_free(n) for v in n.outs}

    def block(
        self,
        block: Block,
        places: Iterable[str],
        present: Mapping[int, set[str]],
        loops: tuple[Loop, ...] = (),
    ) -> dict[str, _Stream]:
        streams = {place: _Stream() for place in places}
        wants = self.placement.users(block)
        for value, there in present.items():
            for place in there:
                streams[place].has.add(value)
        self._streams, self._wants, self._loops = streams, wants, loops
        for place in streams:
            self._bring(sorted(wants[place].intersection(block.inputs)), place)
        for node in block.nodes:
            if self.placement.crosses(node) and isinstance(node, Loop):
                self._loop(node, streams, wants, loops)
            elif not self.placement.is_free(node):
                self._make(node, self.placement.node[node.id])
        self._carry_home(block)
        for stream in streams.values():
            stream.flush()
        return streams

    def _carry_home(self, block: Block) -> None:
        for value in block.inputs:
            if value in self.placement.carried:
                self._bring([self.placement.carried[value]], self.placement.home[value])
        if block is self.graph.block:
            for out, place in self.placement.reports.items():
                self._bring([out], place)
        for out in block.outputs:
            if out in self.free:
                for stream_place in self._streams:
                    self._bring([out], stream_place)

    def _bring(self, values: Sequence[int], place: str) -> None:
        """See to it that `place` has these values, with one message from each place."""
        away: dict[str, list[int]] = defaultdict(list)
        for v in values:
            if v in self.graph.constants or v in self._streams[place].has:
                continue
            if v in self.free:
                self._make(self.free[v], place)
            else:
                away[self.placement.home[v]].append(v)
        for source, found in away.items():
            ready = self._streams[source].has & self._wants[place] - self._streams[place].has
            mine = {v for v in ready if self.placement.home.get(v) == source}
            self._cross(source, place, sorted(mine | set(found)))

    def _make(self, node: Node, place: str) -> None:
        self._bring(node.ins, place)
        stream = self._streams[place]
        (stream.call if host_call(node) else stream.make)(node)
        stream.has |= set(node.outs)

    def _cross(self, source: str, target: str, values: Sequence[int]) -> None:
        times = math.prod(loop.length for loop in self._loops)
        inside = tuple(loop.id for loop in self._loops)
        transfer = Transfer(len(self.transfers), source, target, tuple(values), times, inside)
        self.transfers.append(transfer)
        self._streams[source].flush()
        self._streams[source].code.append(Send(transfer))
        self._streams[target].flush()
        self._streams[target].code.append(Receive(transfer))
        self._streams[target].has |= set(values)

    def _loop(
        self,
        loop: Loop,
        streams: dict[str, _Stream],
        wants: dict[str, set[int]],
        loops: tuple[Loop, ...],
    ) -> None:
        placement, needs = self.placement, self.placement.loop_users(loop)
        for place, values in needs.items():
            self._bring(sorted(values), place)
        consts, carry, xs = loop.parts()
        inside: dict[int, set[str]] = {}
        for part in (consts, xs):
            for outer, inner in zip(loop.ins[part], loop.body.inputs[part], strict=True):
                inside[inner] = {p for p in needs if outer in needs[p]}
        for outer, inner, out in zip(
            loop.ins[carry], loop.body.inputs[carry], loop.body.outputs, strict=False
        ):
            same = inner == out
            inside[inner] = (
                {p for p in needs if outer in needs[p]} if same else {placement.home[inner]}
            )
        members = [p for p in streams if p in placement.members(loop)]
        body = self.block(loop.body, members, inside, (*loops, loop))
        self._streams, self._wants, self._loops = streams, wants, loops
        for place in members:
            streams[place].flush()
            code = self._repeat(loop, place, body[place].code, inside)
            streams[place].code.append(code)
            streams[place].has |= code.makes

    def _repeat(
        self, loop: Loop, place: str, code: Sequence[Instruction], inside: Mapping[int, set[str]]
    ) -> Repeat:
        home, body = self.placement.home, loop.body
        consts, carry, xs = loop.parts()

        def used(part: slice) -> tuple[tuple[int, int], ...]:
            pairs = zip(loop.ins[part], body.inputs[part], strict=True)
            return tuple((o, i) for o, i in pairs if place in inside[i])

        carried = list(
            zip(loop.ins[carry], body.inputs[carry], body.outputs, loop.outs, strict=False)
        )
        fixed = [c for c in carried if c[1] == c[2]]
        moving = tuple(c for c in carried if c[1] != c[2] and home[c[1]] == place)
        ys = tuple(
            (i, o)
            for i, o in zip(
                body.outputs[loop.num_carry :], loop.outs[loop.num_carry :], strict=True
            )
            if home.get(o) == place
        )
        consts_used = used(consts) + tuple((f, i) for f, i, *_ in fixed if place in inside[i])
        kept = tuple((f, after) for f, _, _, after in fixed if home.get(f, place) == place)
        live = {v for _, _, v, _ in moving} | {i for i, _ in ys}
        final = _with_liveness(self.graph, code, live, own=set())
        return Repeat(
            loop.id, loop.length, loop.reverse, final, consts_used, used(xs), moving, ys, kept
        )


def _with_liveness(
    graph: Graph, code: Sequence[Instruction], live: set[int], own: set[int]
) -> tuple[Instruction, ...]:
    """Fill in what each segment reads, makes and may overwrite, walking backwards.

    `own` are the values that come into this code and that nobody else holds.
    """
    made = {v for i in code if isinstance(i, Compute) for n in i.nodes for v in graph.nodes[n].outs}
    donatable = (own | made) - _seen_by_others(code)
    live, done = set(live), []
    for step in reversed(code):
        match step:
            case Send(transfer):
                live |= set(transfer.values)
            case Receive(transfer):
                live -= set(transfer.values)
            case Repeat():
                live = (live - step.makes) | step.reads
            case Host(_, ins, outs):
                ins = set(ins) - set(graph.constants)
                step = replace(step, dead=tuple(sorted(ins - live)))
                live = (live - set(outs)) | ins
            case Compute(nodes):
                outs = {v for n in nodes for v in graph.nodes[n].outs}
                ins = {v for n in nodes for v in graph.nodes[n].ins} - outs - set(graph.constants)
                step = replace(
                    step,
                    ins=tuple(sorted(ins)),
                    outs=tuple(sorted(outs & live)),
                    donate=_reusable(graph, sorted((ins - live) & donatable), outs & live),
                    dead=tuple(sorted(ins - live)),
                )
                live = (live - outs) | ins
        done.append(step)
    return tuple(reversed(done))


def _seen_by_others(code: Sequence[Instruction]) -> set[int]:
    """Values whose memory others may hold: sent, received, or given to a loop that may send."""
    seen: set[int] = set()
    for step in code:
        match step:
            case Send(transfer) | Receive(transfer):
                seen |= set(transfer.values)
            case Host(_, ins, _):  # it may hand on what it was given
                seen |= set(ins)
            case Repeat():
                seen |= step.reads | step.makes | _seen_by_others(step.code)
    return seen


def _reusable(graph: Graph, dead: Sequence[int], outs: Iterable[int]) -> tuple[int, ...]:
    """Those of the dead inputs in whose memory an output fits."""
    room = Counter((graph.values[v].shape, graph.values[v].dtype) for v in outs)
    found = []
    for v in dead:
        size = (graph.values[v].shape, graph.values[v].dtype)
        if room[size]:
            room[size] -= 1
            found.append(v)
    return tuple(found)
