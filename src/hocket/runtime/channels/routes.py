"""Who sends which part of a value to whom: worked out once, when an instance is set up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hocket.core.plan.data import Plan
from hocket.core.projection.instructions import Transfer
from hocket.runtime.channels.joins import Joined, Part, join_of


@dataclass(frozen=True)
class Route:
    """How the instances of a source and of a target pair up."""

    sources: int
    targets: int
    any: bool = False
    """Whether what one source sends is whole without that of the others."""

    @staticmethod
    def of(plan: Plan, transfer: Transfer) -> Route:
        sources, targets = plan.instances(transfer.source), plan.instances(transfer.target)
        some = plan.free is not None and plan.free.is_any(transfer)
        return Route(sources, targets, any=some)

    def cuts(self) -> int:
        """Into how many parts a source cuts a per-environment value."""
        return max(1, self.targets // self.sources)

    def pairs(self) -> list[tuple[int, int]]:
        """Each source with each of its targets."""
        most = max(self.sources, self.targets)
        return [(k * self.sources // most, k * self.targets // most) for k in range(most)]

    def leads(self, source: int, target: int) -> bool:
        """Whether this source is the one that sends the target what is uniform."""
        return self.any or source == next(s for s, t in self.pairs() if t == target)


@dataclass(frozen=True)
class Outgoing:
    """What one instance sends in one transfer."""

    transfer: Transfer
    targets: tuple[int, ...]
    values: tuple[tuple[int, ...], ...]
    """For each target, the values of its message."""
    cut: Mapping[int, int]
    """The values that are cut into a part for each target, with the axis along which they are."""


@dataclass(frozen=True)
class Incoming:
    """What one instance receives in one transfer."""

    transfer: Transfer
    sources: tuple[int, ...]
    joins: tuple[Joined, ...]
    """How each of the transfer's values is made from one message of every source that is taken."""


def crossing(plan: Plan, transfer: Transfer, source: int, target: int) -> tuple[int, ...]:
    """The values that cross between two instances: what is uniform, from one of the sources."""
    leads = Route.of(plan, transfer).leads(source, target)
    return tuple(v for v in transfer.values if plan.axes.axis(v) is not None or leads)


def is_version(plan: Plan, transfer: Transfer) -> bool:
    """Whether this crosses through a free channel: the newest for all who read it."""
    return plan.free is not None and plan.free.is_version(transfer)


def outgoing(plan: Plan, place: str, index: int) -> dict[int, Outgoing]:
    """What an instance sends, by the number of the transfer."""
    mine = [t for t in plan.projection.transfers if t.source == place]
    return {t.id: _outgoing(plan, t, index) for t in mine}


def _outgoing(plan: Plan, transfer: Transfer, index: int) -> Outgoing:
    route = Route.of(plan, transfer)
    # A version is one for all.
    every = [(0, 0)] if is_version(plan, transfer) else route.pairs()
    targets = tuple(t for s, t in every if s == index)
    values = tuple(crossing(plan, transfer, index, target) for target in targets)
    axes = {v: plan.axes.axis(v) for v in transfer.values if route.cuts() > 1}
    cut = {v: axis for v, axis in axes.items() if axis is not None}
    return Outgoing(transfer, targets, values, cut)


def incoming(plan: Plan, place: str, index: int) -> dict[int, Incoming]:
    """What an instance receives, by the number of the transfer."""
    mine = [t for t in plan.projection.transfers if t.target == place]
    return {t.id: _incoming(plan, t, index) for t in mine}


def _incoming(plan: Plan, transfer: Transfer, index: int) -> Incoming:
    route = Route.of(plan, transfer)
    sources = tuple(s for s, t in route.pairs() if t == index)
    # Of those who make samples any few are taken, whose messages are all alike.
    taken = sources[: plan.free.batch] if plan.free and route.any else sources
    parts: dict[int, list[Part]] = {v: [] for v in transfer.values}
    for number, source in enumerate(taken):
        for k, v in enumerate(crossing(plan, transfer, source, index)):
            parts[v].append(Part(number, k))
    joins = tuple(Joined(join_of(plan.axes.axis(v)), tuple(at)) for v, at in parts.items())
    return Incoming(transfer, sources, joins)
