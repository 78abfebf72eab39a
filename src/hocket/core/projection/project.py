"""Projection: from one program for all places to one program for each.

Every place runs its own equations, and sends and receives where a value crosses.

**Why a plan cannot deadlock.** All programs are written together, in the order of a single program
that executes the step's equations, pass after pass and iteration after iteration. A `Send` is
followed at once by its `Receive`, and both come before the equation that needs the value. The
program of a place is a subsequence of this order. Since a transport has room for at least one
message of each transfer, an instruction waits only for earlier ones:

- a `Receive` waits for its `Send`;
- a `Send` waits for room, that is for the `Receive` of the message before it, in an earlier pass of
  the loop or in an earlier iteration.

Take, of all instances, the one whose next instruction comes first in the order. What it would wait
for is earlier, and so has been done. Hence there is always an instance that can go on.

`averaged` in a segment waits for the other replicas of the place. They run the same program, and
`averaged` under a condition that may differ between replicas is refused (`analysis/equations.py`),
so they all come to it. In a free plan the learner and the makers of its samples also wait for the
counts of samples and versions in a shared ledger. `hocket.runtime.free` says why that wait ends.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hocket.core.graph.host_calls import host_call
from hocket.core.graph.trace import Block, Given, Graph, Loop, Node, NodeId, ValueId
from hocket.core.projection.instructions import (
    Compute,
    Host,
    Instruction,
    PassedOn,
    Projection,
    Receive,
    Repeat,
    Send,
    Transfer,
    TransferId,
    walk,
)
from hocket.core.projection.placement import Placement


def project(
    graph: Graph,
    where: Mapping[str, str],
    places: Mapping[str, int],
    reporter: str | None = None,
) -> Projection:
    """Return the programs of `places` (name -> replicas), with fragments placed by `where`.

    The place `reporter`, if one is named, reports all metrics.
    """
    placement = Placement(graph, where, places, reporter)
    homes = {v: {placement.home[v]} for v in graph.block.inputs}
    writer, programs = _Writer(placement, [], graph.block, homes), {}
    for place, stream in writer.write().items():
        # A place may overwrite a leaf of the state only if nobody else reads its memory. The leaf
        # is what the previous iteration made. If that was sent or reported, it may still be read.
        elsewhere = _seen_by_others(stream.code).union(graph.reported)
        own = {v for v, out in placement.held(place).items() if out not in elsewhere}
        programs[place] = _with_liveness(graph, stream.code, placement.ends(place), own)
    return Projection(placement, programs, tuple(writer.transfers))


@dataclass
class _Stream:
    """The program of one place for one block, while it is being written."""

    code: list[Instruction] = field(default_factory=list)
    open: list[NodeId] = field(default_factory=list)
    """The nodes of the segment that is not finished yet."""
    has: set[ValueId] = field(default_factory=set)
    late: set[ValueId] = field(default_factory=set)
    """The values made by the last host call or after it."""

    def flush(self) -> None:
        """End the open segment."""
        if self.open:
            self.code.append(Compute(tuple(self.open)))
            self.open = []

    def add(self, step: Instruction) -> None:
        """Append an instruction after the open segment."""
        self.flush()
        self.code.append(step)

    def make(self, node: Node) -> None:
        """Add a node to the open segment, or to the segment before the last host call.

        The earlier segment is chosen if the node reads nothing that was made by the call or after
        it, because this can save a segment. Sends and receives keep their order, so a plan still
        cannot deadlock.
        """
        match self.code:
            case [*_, Compute(nodes), Host()] if self.late.isdisjoint(node.ins):
                self.code[-2] = Compute((*nodes, node.id))
            case _:
                self.open.append(node.id)
                self.late |= set(node.outs)

    def call(self, node: Node) -> None:
        self.add(Host(node.id, node.ins, node.outs))
        self.late = set(node.outs)


class _Writer:
    """Writes the programs of all places for one block, together and in one order.

    `present` says where the inputs of the block are; `loops` are the loops around it.
    """

    def __init__(
        self,
        placement: Placement,
        transfers: list[Transfer],
        block: Block,
        present: Mapping[ValueId, set[str]],
        loops: tuple[Loop, ...] = (),
    ) -> None:
        self.placement, self.graph = placement, placement.graph
        self.transfers, self.block, self.loops = transfers, block, loops
        self.wants = placement.users(block)
        self.free = {v: n for n in self.graph.nodes if placement.is_free(n) for v in n.outs}
        members = placement.members(loops[-1]) if loops else placement.places
        self.streams = {
            place: _Stream(has={v for v, there in present.items() if place in there})
            for place in placement.places
            if place in members
        }

    def write(self) -> dict[str, _Stream]:
        """Return what each place does in this block."""
        for place in self.streams:
            self._bring(sorted(self.wants[place].intersection(self.block.inputs)), place)
        for node in self.block.nodes:
            if self.placement.crosses(node):
                self._loop(node)
            elif not self.placement.is_free(node):
                self._make(node, self.placement.node[node.id])
        self._carry_home()
        for stream in self.streams.values():
            stream.flush()
        return self.streams

    def _carry_home(self) -> None:
        """Bring each value's next version to the place where the value lives.

        Also bring each metric to the place that reports it.
        """
        for value in self.block.inputs:
            if value in self.placement.carried:
                self._bring([self.placement.carried[value]], self.placement.home[value])
        for out, place in self.placement.reports.items() if not self.loops else ():
            self._bring([out], place)
        for out in (v for v in self.block.outputs if v in self.free):
            for place in self.streams:
                self._bring([out], place)

    def _bring(self, values: Sequence[ValueId], place: str) -> None:
        """Bring the values that `place` lacks, in one message from each place that has some."""
        away: dict[str, list[ValueId]] = defaultdict(list)
        for v in values:
            if v in self.graph.constants or v in self.streams[place].has:
                continue
            if v in self.free:
                self._make(self.free[v], place)
            else:
                away[self.placement.home[v]].append(v)
        for source, needed in away.items():
            # Other values that `place` will need from this source go along, if they are ready.
            ready = self.streams[source].has & self.wants[place] - self.streams[place].has
            along = {v for v in ready if self.placement.home.get(v) == source}
            self._cross(source, place, sorted(along.union(needed)))

    def _make(self, node: Node, place: str) -> None:
        self._bring(node.ins, place)
        stream = self.streams[place]
        (stream.call if host_call(node) else stream.make)(node)
        stream.has |= set(node.outs)

    def _cross(self, source: str, target: str, values: Sequence[ValueId]) -> None:
        # The `Send` and its `Receive` are written together. So every program is a subsequence of
        # one common order, which is why the plan cannot deadlock.
        transfer = Transfer(
            TransferId(len(self.transfers)), source, target, tuple(values),
            math.prod(loop.length for loop in self.loops), tuple(loop.id for loop in self.loops),
        )  # fmt: skip
        self.transfers.append(transfer)
        self.streams[source].add(Send(transfer))
        self.streams[target].add(Receive(transfer))
        self.streams[target].has |= set(values)

    def _loop(self, loop: Loop) -> None:
        # What a loop only reads crosses once, before the loop, and not in every pass.
        home, needs = self.placement.home, self.placement.loop_users(loop)
        for place, values in needs.items():
            self._bring(sorted(values), place)
        inside = {c.inside: {home[c.inside]} for c in loop.carry if not c.is_kept}
        for outer, inner in (*loop.consts, *loop.xs, *_kept(loop)):
            inside[inner] = {p for p in needs if outer in needs[p]}
        body = _Writer(self.placement, self.transfers, loop.body, inside, (*self.loops, loop))
        for place, stream in body.write().items():
            code = self._repeat(loop, place, stream.code, inside)
            self.streams[place].add(code)
            self.streams[place].has |= code.makes

    def _repeat(
        self,
        loop: Loop,
        place: str,
        code: Sequence[Instruction],
        inside: Mapping[ValueId, set[str]],
    ) -> Repeat:
        home = self.placement.home
        consts, xs = (
            tuple(x for x in given if place in inside[x.inside])
            for given in ((*loop.consts, *_kept(loop)), loop.xs)
        )
        carry = tuple(c for c in loop.carry if not c.is_kept and home[c.inside] == place)
        ys = tuple(y for y in loop.ys if home.get(y.after) == place)
        kept = tuple(
            PassedOn(c.first, c.after)
            for c in loop.carry
            if c.is_kept and home.get(c.first, place) == place
        )
        live = {*(c.next for c in carry), *(y.row for y in ys)}
        final = _with_liveness(self.graph, code, live, own=set())
        return Repeat(loop.id, loop.length, loop.reverse, final, consts, xs, carry, ys, kept)


def _kept(loop: Loop) -> list[Given]:
    """Return the values that no pass of a loop changes. The loop's body reads them as constants."""
    return [Given(c.first, c.inside) for c in loop.carry if c.is_kept]


def _with_liveness(
    graph: Graph, code: Sequence[Instruction], live: set[ValueId], own: set[ValueId]
) -> tuple[Instruction, ...]:
    """Fill in what each segment reads, makes and may overwrite, from the end to the beginning.

    `live` are the values needed after the code, `own` the inputs that nobody else holds.
    """
    made = {v for i in code if isinstance(i, Compute) for n in i.nodes for v in graph.nodes[n].outs}
    donatable, done = (own | made) - _seen_by_others(code), []
    for step in reversed(code):
        if isinstance(step, Compute):
            step = _segment(graph, step.nodes, live, donatable)
        elif isinstance(step, Host):
            step = replace(step, dead=tuple(sorted(step.reads - live - set(graph.constants))))
        live = (live - step.makes) | step.reads
        done.append(step)
    return tuple(reversed(done))


def _segment(
    graph: Graph, nodes: tuple[NodeId, ...], live: set[ValueId], donatable: set[ValueId]
) -> Compute:
    """Return a segment that runs these nodes and outputs those of their results that are `live`."""
    made = {v for n in nodes for v in graph.nodes[n].outs}
    ins = {v for n in nodes for v in graph.nodes[n].ins} - made - set(graph.constants)
    outs, dead = made & live, sorted(ins - live)
    donate = _reusable(graph, [v for v in dead if v in donatable], outs)
    return Compute(nodes, tuple(sorted(ins)), tuple(sorted(outs)), donate, tuple(dead))


def _seen_by_others(code: Sequence[Instruction]) -> set[ValueId]:
    """Return the values whose memory no segment may overwrite, because others may still hold it.

    These values are sent, received, given to a host function, or read or made by a loop.
    """
    seen: set[ValueId] = set()
    for step in walk(code):
        if isinstance(step, Host):  # a host function may hold its arguments, not its results
            seen |= step.reads
        elif not isinstance(step, Compute):
            seen |= step.reads | step.makes
    return seen


def _reusable(
    graph: Graph, dead: Sequence[ValueId], outs: Iterable[ValueId]
) -> tuple[ValueId, ...]:
    """Return dead inputs whose memory the outputs can take, at most one for each output."""
    room = Counter((graph.values[v].shape, graph.values[v].dtype) for v in outs)
    reused = []
    for v in dead:
        size = (graph.values[v].shape, graph.values[v].dtype)
        if room[size]:
            room[size] -= 1
            reused.append(v)
    return tuple(reused)
