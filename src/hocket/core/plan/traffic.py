"""The traffic of an iteration of a plan: between places, and between replicas that average."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hocket.core.analysis.averages import average_sites as sites_of
from hocket.core.analysis.averages import averages as averages_of
from hocket.core.analysis.averages import uses_averaged
from hocket.core.graph.trace import Loop, Node, ValueId
from hocket.core.program.tuning import MOST_UNROLLED, PLAIN, Tuning
from hocket.core.projection.instructions import Transfer

if TYPE_CHECKING:
    from hocket.core.plan.data import Plan


@dataclass(frozen=True)
class Flow:
    """Everything that crosses from one place to another in an iteration."""

    source: str
    target: str
    values: tuple[str, ...]
    messages: int
    nbytes: int


def flows(plan: Plan) -> list[Flow]:
    """Return what crosses in an iteration, and its bytes, for each pair of places."""
    by_ends: dict[tuple[str, str], list[Transfer]] = {}
    for t in plan.projection.transfers:
        by_ends.setdefault((t.source, t.target), []).append(t)
    return [
        Flow(
            source, target,
            tuple(dict.fromkeys(plan.graph.values[v].name for t in ts for v in t.values)),
            sum(t.times * plan.cuts(t) * _pairs(plan, source, target) for t in ts),
            sum(t.times * _nbytes(plan, t, v) for t in ts for v in t.values),
        )
        for (source, target), ts in by_ends.items()
    ]  # fmt: skip


def pairs(plan: Plan, transfer: Transfer) -> list[tuple[int, int]]:
    """Return the (source, target) indices of all pairs of instances that a transfer connects."""
    sources, targets = plan.instances(transfer.source), plan.instances(transfer.target)
    most = max(sources, targets)
    return [(k * sources // most, k * targets // most) for k in range(most)]


def leaders(every: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Return the first source of each target, given all pairs of instances of a transfer.

    A value that is the same in all sources is sent to a target by its first source alone.
    """
    return {target: source for source, target in reversed(every)}


def averages(plan: Plan) -> dict[str, tuple[int, int]]:
    """Return the number of calls of `averaged` in an iteration, and their bytes, for each place."""
    traffic = {}
    for name in plan.averaging:
        calls = [
            (times * n, xs) for node, times in _nodes(plan, name) for n, xs in averages_of(node)
        ]
        nbytes = sum(n * x.size * x.dtype.itemsize for n, xs in calls for x in xs)
        traffic[name] = sum(n for n, _ in calls), nbytes
    return traffic


def average_sites(plan: Plan, place: str) -> list[tuple[Any, ...]]:
    """Return the array shapes that each call of `averaged` gets, in the programs of one replica."""
    nodes = [node for node, _ in _nodes(plan, place)]
    if any(isinstance(node, Loop) and uses_averaged(node.eqn) for node in nodes):
        # The hardware is not known here. On some, the loop is unrolled, and each unrolled step has
        # a call of its own. So unroll it as far as any hardware does.
        nodes = [node for node, _ in _nodes(plan, place, Tuning(unroll=MOST_UNROLLED))]
    return [arrays for node in nodes for arrays in sites_of(node)]


def _nodes(plan: Plan, place: str, choice: Tuning = PLAIN) -> list[tuple[Node, int]]:
    """Return the nodes of one replica of a place, and how often each runs in an iteration."""
    share = plan.graph.at(plan.graph.num_envs // plan.place(place).replicas, choice)
    owner = plan.projection.placement.node
    return [(node, times) for node, times in share.block.walk() if owner.get(node.id) == place]


def _pairs(plan: Plan, source: str, target: str) -> int:
    """Return the number of pairs of instances between which a transfer's messages go."""
    if plan.free and {source, target} == {plan.free.learner, plan.free.maker}:
        # In an iteration the learner takes `batch` samples, and publishes one version.
        return plan.free.batch if source == plan.free.maker else 1
    return max(plan.instances(source), plan.instances(target))


def _nbytes(plan: Plan, transfer: Transfer, value: ValueId) -> int:
    """Return how many bytes one value takes in all messages of a transfer together."""
    if plan.free and {transfer.source, transfer.target} == {plan.free.learner, plan.free.maker}:
        return plan.iteration.values[value].nbytes
    split = plan.axes.axis(value) is not None
    times = 1 if split else plan.instances(transfer.target) * plan.cuts(transfer)
    return plan.graph.values[value].nbytes * times
