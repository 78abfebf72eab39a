"""The nodes of a plan: which instances run on each, and what crosses between them."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from hocket.core.plan.traffic import averages, leaders, pairs
from hocket.core.projection.instructions import Transfer

if TYPE_CHECKING:
    from hocket.core.plan.data import Plan

NodePair: TypeAlias = tuple[str, str]
"""The node that sends, and the node that receives. They are equal for what stays on one node."""
Rates: TypeAlias = Mapping[NodePair, tuple[float, float]]
"""The measured speed between two nodes: the seconds that a small message takes to arrive, and the
bytes per second of a large one."""


class NodeGroup(NamedTuple):
    """Nodes that run equally many instances of every place."""

    nodes: tuple[str, ...]
    instances: tuple[tuple[str, int], ...]
    """Each place with instances there, and their number on each of the nodes."""


@dataclass(frozen=True)
class Crossing:
    """Everything that goes from one node to another in an iteration."""

    nbytes: int = 0
    messages: int = 0
    turns: int = 0
    """How many of the messages go one after another. The others go at the same time, between other
    pairs of instances."""

    def __add__(self, other: Crossing) -> Crossing:
        return Crossing(
            self.nbytes + other.nbytes, self.messages + other.messages, self.turns + other.turns
        )

    def seconds(self, rate: tuple[float, float]) -> float:
        """Return how long the messages are under way at a measured rate."""
        small, per_second = rate
        return self.turns * small + self.nbytes / per_second


class Connection(NamedTuple):
    """Pairs of nodes between which equally much crosses in an iteration."""

    pairs: tuple[NodePair, ...]
    each: Crossing


def node_groups(plan: Plan) -> list[NodeGroup]:
    """Return all nodes that have instances, grouped by how many of each place they run."""
    counts: dict[str, Counter[str]] = {}
    for place, nodes in _nodes_of(plan).items():
        for node in nodes:
            counts.setdefault(node, Counter())[place] += 1
    alike: dict[tuple[tuple[str, int], ...], list[str]] = defaultdict(list)
    for node, instances in counts.items():
        alike[tuple(instances.items())].append(node)
    return [NodeGroup(tuple(nodes), instances) for instances, nodes in alike.items()]


def crossings(plan: Plan) -> dict[NodePair, Crossing]:
    """Return what crosses in an iteration, for each pair of nodes, and within each node.

    Ways to average differ. Here, averages count as if every replica computed the mean of an equal
    share of the arrays. A free plan is on one node, so it has no crossings.
    """
    total: dict[NodePair, Crossing] = defaultdict(Crossing)
    nodes = _nodes_of(plan)
    for t in () if plan.free else plan.projection.transfers:
        for pair, crossing in _of_transfer(plan, t, nodes).items():
            total[pair] += crossing
    for place, (calls, nbytes) in averages(plan).items():
        replicas, counts = len(nodes[place]), Counter(nodes[place])
        for a, b in itertools.product(counts, repeat=2):
            # Each replica sends every other one the part of its arrays that the other is to
            # average, and later the means of its own part.
            many = counts[a] * (counts[b] - (a == b))
            exchange = Crossing(2 * nbytes * many // replicas, 2 * calls * many, 2 * calls)
            total[a, b] += exchange if many else Crossing()
    return {pair: crossing for pair, crossing in total.items() if crossing.messages}


def connections(plan: Plan) -> tuple[list[Connection], list[Connection]]:
    """Return what crosses between nodes, and what stays within nodes, the most bytes first."""
    group = {node: i for i, group in enumerate(node_groups(plan)) for node in group.nodes}
    alike: dict[tuple[int, int, Crossing], list[NodePair]] = defaultdict(list)
    for (a, b), crossing in crossings(plan).items():
        # What stays on equal nodes is equal, so it gets a key without the second node.
        alike[group[a], group[b] if a != b else -1, crossing].append((a, b))
    every = [Connection(tuple(ends), each) for (*_, each), ends in alike.items()]
    every.sort(key=lambda x: -x.each.nbytes)
    between = [x for x in every if x.pairs[0][0] != x.pairs[0][1]]
    return between, [x for x in every if x not in between]


def ends_of(connection: Connection) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Return the nodes that send and those that receive, if all of these do so pairwise."""
    sources, targets = (tuple(dict.fromkeys(ends)) for ends in zip(*connection.pairs, strict=True))
    every = {(a, b) for a in sources for b in targets if a != b}
    return (sources, targets) if every == set(connection.pairs) else None


def busiest(plan: Plan) -> tuple[str, int, int] | None:
    """Return the node with the most traffic, and the bytes that it receives and sends."""
    received, sent = Counter[str](), Counter[str]()
    for (a, b), crossing in crossings(plan).items():
        if a != b:
            sent[a] += crossing.nbytes
            received[b] += crossing.nbytes
    nodes = {*received, *sent}
    if not nodes:
        return None
    node = max(sorted(nodes), key=lambda n: max(received[n], sent[n]))
    return node, received[node], sent[node]


def seconds_of(connection: Connection, rates: Rates) -> list[float]:
    """Return the seconds of each pair of nodes whose rate was measured."""
    return [connection.each.seconds(rates[pair]) for pair in connection.pairs if pair in rates]


def _nodes_of(plan: Plan) -> dict[str, list[str]]:
    """Return the node of every instance of each place."""
    return {
        place.name: [place.node(i) for i in range(plan.instances(place.name))]
        for place in plan.places
    }


def _of_transfer(
    plan: Plan, t: Transfer, nodes: Mapping[str, list[str]]
) -> dict[NodePair, Crossing]:
    """Return what one transfer brings from node to node in an iteration."""
    every, turns = pairs(plan, t), t.times * plan.cuts(t)
    split, whole = _bytes(plan, t, is_split=True), _bytes(plan, t, is_split=False)
    # A value with an environment axis is shared out, and any other goes whole to each target.
    messages, leading, leader = Counter[NodePair](), Counter[NodePair](), leaders(every)
    for a, b in every:
        pair = nodes[t.source][a], nodes[t.target][b]
        messages[pair] += 1
        leading[pair] += leader[b] == a
    return {
        pair: Crossing(
            t.times * split * n // len(every) + turns * whole * leading[pair], turns * n, turns
        )
        for pair, n in messages.items()
    }


def _bytes(plan: Plan, t: Transfer, *, is_split: bool) -> int:
    values: Iterator[int] | Iterable[int] = (
        plan.graph.values[v].nbytes for v in t.values if (plan.axes.axis(v) is not None) == is_split
    )
    return sum(values)
