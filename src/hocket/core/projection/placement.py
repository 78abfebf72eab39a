"""Placement: where each node of a graph runs and each value lives, given where fragments run.

In three steps, each of which needs the one before:

1. *Fragments* go where the plan says. A loop is opened if its fragments are on several places: then
   it belongs to none, and its body is placed like the step itself.
2. *Glue*, the equations between fragments, goes where the fewest bytes cross.
3. *Values* live where they are made. A value that lives on, in the state or in what a loop carries,
   lives where its next version is made, so that it need not cross in every iteration.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TypeGuard

from hocket.core.graph.host_calls import calls_host
from hocket.core.graph.trace import Block, Graph, Loop, Node, NodeId, ValueId
from hocket.errors import PlanError


class Placement:
    """The place of every node (`node`) and of every value (`home`).

    Glue, the equations between fragments, goes to one place if it is connected. A loop whose
    fragments are all on one place is a node of that place. A loop with fragments on several places,
    or with a host function, is on no place: every place runs its own part of it. Values made from
    constants alone have no home, since every place makes them for itself.
    """

    def __init__(
        self,
        graph: Graph,
        where: Mapping[str, str],
        places: Mapping[str, int],
        reporter: str | None = None,
    ) -> None:
        self.graph = graph
        self.places = places  # a place's name -> how many replicas it has
        self.node: dict[NodeId, str] = {}
        self.home: dict[ValueId, str] = {}
        self._producer: dict[ValueId, Node] = {}
        # A row that a loop makes in each pass -> the arrays in which it is stacked.
        self._stacked: dict[ValueId, list[ValueId]] = defaultdict(list)
        # A value inside or after a loop -> the value that it comes from, across the loop's edge.
        self._source: dict[ValueId, ValueId] = {}
        # A value that lives on -> its next version, in the next iteration or pass of a loop.
        self.carried = graph.next_state
        self._everywhere = set(graph.constants)
        self.reports: dict[ValueId, str] = {}  # metric -> the place that reports it
        self._place_fragments(graph.block, where)
        # The best place for glue depends on its neighbours, which can be glue of other blocks. In
        # the first round some of these have no place yet; in the second all do.
        for _ in range(2):
            for block in self.open_blocks(graph.block):
                self._place_glue(block)
        self.home = self._homes()
        # State that is only passed on has no node that makes it, so it lives with its first reader.
        # Loops may pass such state on, too. The values that stand for it there now get this home.
        self.home |= {v: self._first_user(v) for v in self.carried if v not in self.home}
        self.home |= self._homes()
        self._stack_where_used()
        # A metric that is made from constants has no home. The place with the fewest replicas
        # reports it. If it is the number of environments, say, a replica would report too few.
        whole = min(places, key=lambda place: places[place])
        for out in graph.reported:
            self.home.setdefault(out, whole)
        self.reports = {out: reporter or self.home[out] for out in graph.reported}

    def _stack_where_used(self) -> None:
        """Stack a loop's rows on a place that needs the whole array and gets every row anyway.

        Actions, for example, go to the environment in every pass. If another place stacked them,
        they would cross twice: row by row in the loop, and once more as an array after it.
        """
        for block in self.open_blocks(self.graph.block):
            wants = self.users(block)
            for loop in block.nodes:
                if not self.crosses(loop):
                    continue
                inside = self.users(loop.body)
                for row, after in loop.ys:
                    users = [p for p in wants if after in wants[p]]
                    ready = [p for p in users if row in inside[p]]
                    if ready and self.home.get(after) not in users:
                        self.home[after] = ready[0]
                    elif after not in self.home:  # its rows are constants, which every place has
                        near = users or self.members(loop)
                        self.home[after] = next(place for place in self.places if place in near)

    def held(self, place: str) -> dict[ValueId, ValueId]:
        """Return the leaves of the state that live on a place, with their values after the step."""
        return {v: out for v, out in self.graph.next_state.items() if self.home[v] == place}

    def ends(self, place: str) -> set[ValueId]:
        """Return what a place needs when an iteration ends: its next state and its metrics."""
        metrics = {v for v, at in self.reports.items() if at == place}
        return metrics.union(self.held(place).values())

    def open_blocks(self, block: Block) -> Iterator[Block]:
        """Yield the step, and the body of every loop that crosses places."""
        yield block
        for node in block.nodes:
            if self.crosses(node):
                yield from self.open_blocks(node.body)

    def crosses(self, node: Node) -> TypeGuard[Loop]:
        """Return True for a loop that belongs to no place: every place runs its own part of it."""
        return isinstance(node, Loop) and node.id not in self.node

    def is_free(self, node: Node) -> bool:
        """Return True for a node that reads only constants: every place runs it for itself."""
        return not node.labels and not node.eqn.effects and self._everywhere.issuperset(node.ins)

    def users(self, block: Block) -> dict[str, set[ValueId]]:
        """Return, for each place, the values that it needs in a block.

        A place needs what its nodes read, and the next version of each value that it holds.
        """
        wants: dict[str, set[ValueId]] = defaultdict(set)
        for node in block.nodes:
            if self.crosses(node):
                for place, values in self.loop_users(node).items():
                    wants[place] |= values
            elif node.id in self.node:
                wants[self.node[node.id]] |= set(node.ins)
        for value in block.inputs:
            if value in self.carried:
                wants[self.home[value]].add(self.carried[value])
        if block is self.graph.block:
            for out, place in self.reports.items():
                wants[place].add(out)
        for row in block.outputs:
            for after in self._stacked.get(row, ()):
                if after in self.home:
                    wants[self.home[after]].add(row)
        return wants

    def members(self, loop: Loop) -> set[str]:
        """Return the places that take part in a loop on several places."""
        places = set(self.loop_users(loop)) | {self.home[v] for v in loop.outs if v in self.home}
        for node in loop.body.nodes:
            if node.id in self.node:
                places.add(self.node[node.id])
            elif isinstance(node, Loop):
                places |= self.members(node)
        return places

    def loop_users(self, loop: Loop) -> dict[str, set[ValueId]]:
        """Return the values from outside that each place needs for its part of a loop."""
        wants: dict[str, set[ValueId]] = defaultdict(set)
        users = self.users(loop.body).items()
        for outside, inside in (*loop.consts, *loop.xs):
            for place in (place for place, values in users if inside in values):
                wants[place].add(outside)
        for c in loop.carry:
            wants[self.home[c.inside]].add(c.first)
        return wants

    def _place_fragments(self, block: Block, where: Mapping[str, str]) -> None:
        """Place nodes with fragments. Open the loops that cross places. Note constant values."""
        for node in block.nodes:
            self._producer |= dict.fromkeys(node.outs, node)
            places = {where[label.name] for label in node.labels}
            driven = isinstance(node, Loop) and calls_host(node.body)
            if len(places) == 1 and not driven:
                self.node[node.id] = places.pop()
            elif places and isinstance(node, Loop):
                self._open(node)
                self._place_fragments(node.body, where)
            elif places:
                names = ", ".join(f"`{x.name}` on `{where[x.name]}`" for x in node.labels)
                raise PlanError(
                    f"fragments under one `{node.title}` at {node.where} may not be on different "
                    f"places: {names}. Put them on one place, or mask instead of branching."
                )
            elif self.is_free(node):
                self._everywhere |= set(node.outs)

    def _open(self, loop: Loop) -> None:
        """Record where each value inside a loop and each value after it comes from."""
        self._source |= {inside: outside for outside, inside in (*loop.consts, *loop.xs)}
        for c in loop.carry:
            self._source[c.after] = c.inside
            if c.is_kept:
                self._source[c.inside] = c.first
            else:
                self.carried[c.inside] = c.next
        for row, after in loop.ys:
            self._source[after] = row
            self._stacked[row].append(after)

    def _homes(self) -> dict[ValueId, str]:
        """Return the home (the place that holds it) of each value whose home is already known."""
        values = map(ValueId, range(len(self.graph.values)))
        return {v: home for v in values if (home := self._home(v))}

    def _home(self, value: ValueId, seen: frozenset[ValueId] = frozenset()) -> str | None:
        """Return where a value lives; None if that is not known yet.

        The search follows a value to its next version. `seen` holds the versions passed so far. It
        ends the search where values are only swapped, as in `(a, b) -> (b, a)`.
        """
        if value in self._source:
            return self._home(self._source[value], seen)
        if value in self.home:
            return self.home[value]
        if value in self.carried:
            out = self.carried[value]
            return None if out in seen | {value} else self._home(out, seen | {value})
        node = self._producer.get(value)
        return self.node.get(node.id) if node and value not in self._everywhere else None

    def _first_user(self, value: ValueId) -> str:
        """Return the place that is the first to use a value, or the first place of the plan."""
        readers = (n.id for n in self.graph.nodes if value in n.ins and n.id in self.node)
        return next((self.node[n] for n in readers), next(iter(self.places)))

    def _place_glue(self, block: Block) -> None:
        used_by: dict[ValueId, list[Node]] = defaultdict(list)
        for node in block.nodes:
            for v in node.ins:
                used_by[v].append(node)
        for group in self._glue(block):
            costs = {place: self._cost(block, group, place, used_by) for place in self.places}
            # At equal cost prefer a place with one replica: some checks refuse values only if
            # several replicas have them.
            best = min(costs, key=lambda place: (costs[place], self.places[place] > 1))
            self.node |= {node.id: best for node in group}

    def _glue(self, block: Block) -> list[list[Node]]:
        """Return the glue of a block, the equations between fragments, in connected groups.

        Each group gets one place, because a cut inside it would cost one more message.
        """
        groups: list[tuple[set[ValueId], list[Node]]] = []
        for node in block.nodes:
            if node.labels or self.is_free(node):
                continue
            values = {v for v in (*node.ins, *node.outs) if v not in self._everywhere}
            made = {v for v in values if v in self._producer and not self._producer[v].labels}
            touching = [g for g in groups if g[0] & made]
            merged = set().union(made, *(g[0] for g in touching))
            nodes = [n for g in touching for n in g[1]]
            groups = [g for g in groups if g not in touching]
            groups.append((merged, [*nodes, node]))
        return [sorted(nodes, key=lambda n: n.id) for _, nodes in groups]

    def _cost(
        self, block: Block, group: list[Node], place: str, used_by: Mapping[ValueId, list[Node]]
    ) -> int:
        """Return the bytes that would cross between places if `group` ran on `place`."""
        members = {node.id for node in group}
        made = {v for node in group for v in node.outs}
        # A value whose next version this glue makes need not cross: it will live with the glue.
        needed = {v for n in group for v in n.ins if self.carried.get(v) not in made}
        # Other values cross, unless they are on `place` already: because they are made there, or
        # because its nodes read them, too.
        coming = [
            v for v in needed - made - self._everywhere
            if place not in self._places_of(used_by[v], members) | {self._home(v)}
        ]  # fmt: skip
        cost = sum(self.graph.values[v].nbytes for v in coming)
        for v in made:
            carried = [i for i in block.inputs if self.carried.get(i) == v]
            readers = [n for u in (v, *carried) for n in used_by[u]]
            away = self._places_of(readers, members) - {place}
            cost += self.graph.values[v].nbytes * len(away)  # one message to each place
        return cost

    def _places_of(self, nodes: list[Node], members: set[NodeId]) -> set[str | None]:
        """Return the places that run some of `nodes`. The nodes in `members` do not count.

        A loop that crosses places counts for all places with a fragment in it. Which of them reads
        a value is known only after the equations between the loop's fragments are placed.
        """
        places: set[str | None] = set()
        for node in nodes:
            inner = [n for n in node.body.nodes if n.labels] if self.crosses(node) else [node]
            places |= {self.node[n.id] for n in inner if n.id in self.node and n.id not in members}
        return places
