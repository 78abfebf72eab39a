"""Which instances of two places exchange parts of a value, and what one message holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax

from hocket.core.plan.data import Plan
from hocket.core.projection.instructions import Transfer


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
        return Route(sources, targets, any=plan.free == (transfer.target, transfer.source))

    def cuts(self) -> int:
        """Into how many parts a source cuts a per-environment value."""
        return max(1, self.targets // self.sources)

    def pairs(self) -> list[tuple[int, int]]:
        most = max(self.sources, self.targets)
        return [(k * self.sources // most, k * self.targets // most) for k in range(most)]

    def leads(self, source: int, target: int) -> bool:
        """Whether this source is the one that sends the target what is uniform."""
        return self.any or source == next(s for s, t in self.pairs() if t == target)


@dataclass(frozen=True)
class Link:
    """One pipe of a plan: a transfer between one instance and another."""

    transfer: Transfer
    source: int
    target: int
    values: tuple[int, ...]
    """Those of the transfer's values that cross here."""
    specs: tuple[jax.ShapeDtypeStruct, ...]
    """The arrays of one message."""
    slots: int
    """How many messages may be under way."""

    @property
    def key(self) -> tuple[int, int, int]:
        return self.transfer.id, self.source, self.target

    @property
    def name(self) -> str:
        return f"{self.transfer.source}/{self.source} -> {self.transfer.target}/{self.target}"

    @property
    def end(self) -> tuple[str, int]:
        """The place and the instance that receive."""
        return self.transfer.target, self.target

    @property
    def nbytes(self) -> int:
        return sum(x.size * x.dtype.itemsize for x in self.specs)


def is_sample(plan: Plan, transfer: Transfer) -> bool:
    """Whether this is a part of what is made for the place that sends through a free channel."""
    return plan.free is not None and transfer.target == plan.free[0]


def versions(plan: Plan) -> list[Transfer]:
    """What crosses through a free channel, together."""
    return [t for t in plan.projection.transfers if plan.free == (t.source, t.target)]


def version_specs(plan: Plan) -> list[jax.ShapeDtypeStruct]:
    """The arrays of a version."""
    values = [plan.graph.values[v] for t in versions(plan) for v in t.values]
    return [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in values]


def links(plan: Plan) -> Iterator[Link]:
    """Every pipe that the instances of a plan need; versions go another way."""
    for t in plan.projection.transfers:
        if t in versions(plan):
            continue
        route, channel = Route.of(plan, t), plan.channel_of(t)
        for a, b in route.pairs():
            values = crossing(plan, t, a, b)
            specs = tuple(_spec(plan, t, route, v) for v in values)
            room = plan.window if is_sample(plan, t) else channel.capacity + channel.late
            yield Link(t, a, b, values, specs, room * plan.cuts(t))


def crossing(plan: Plan, transfer: Transfer, source: int, target: int) -> tuple[int, ...]:
    """The values that cross between two instances: what is uniform, from one of the sources."""
    leads = Route.of(plan, transfer).leads(source, target)
    return tuple(v for v in transfer.values if plan.axes.axis(v) is not None or leads)


def late_links(plan: Plan) -> list[Link]:
    """The pipes of late channels."""
    return [link for link in links(plan) if plan.channel_of(link.transfer).late]


def late_names(plan: Plan, link: Link) -> list[list[str]]:
    """Names for what is on its way in a late pipe: of each array of each message, oldest first."""
    lag = plan.channel_of(link.transfer).late
    head = "-".join(map(str, link.key))
    return [[f"{head}-{k}-{j}" for j in range(len(link.specs))] for k in range(lag)]


def late_specs(plan: Plan) -> dict[str, jax.ShapeDtypeStruct]:
    """All that is on its way between two blocks of a plan with late channels."""
    return {
        name: spec
        for link in late_links(plan)
        for names in late_names(plan, link)
        for name, spec in zip(names, link.specs, strict=True)
    }


def _spec(plan: Plan, transfer: Transfer, route: Route, value: int) -> jax.ShapeDtypeStruct:
    found, axis = plan.graph.values[value], plan.axes.axis(value)
    shape: list[Any] = list(found.shape)
    if axis is not None:
        shape[axis] //= max(route.sources, route.targets) * plan.cuts(transfer)
    return jax.ShapeDtypeStruct(tuple(shape), found.dtype)
