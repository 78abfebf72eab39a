"""One sender and one receiver of one transfer: what a message of theirs holds, and how it lies."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import numpy as np

from hocket.core.plan.data import Plan
from hocket.core.projection.instructions import Transfer
from hocket.runtime.channels.packing import packing
from hocket.runtime.channels.routes import Route, crossing, is_version
from hocket.system.ring import Spec, slot_layout

LinkKey: TypeAlias = tuple[int, int, int]  # (transfer, source instance, target instance)


@dataclass(frozen=True)
class Link:
    """A transfer between one instance and another."""

    transfer: Transfer
    source: int
    target: int
    values: tuple[int, ...]
    """Those of the transfer's values that cross here."""
    arrays: tuple[jax.ShapeDtypeStruct, ...]
    """The arrays of one message, as instances have them."""
    slots: int
    """How many messages may be under way."""
    delay: float = 0.0
    """Seconds that every message takes in addition."""
    packed: bool = False
    """Whether this end has the small arrays of a message as one block."""
    transport: str = ""
    """The transport that the channel names; empty where it names none."""

    @property
    def key(self) -> LinkKey:
        return self.transfer.id, self.source, self.target

    @property
    def name(self) -> str:
        return f"{self.transfer.source}/{self.source} -> {self.transfer.target}/{self.target}"

    @property
    def end(self) -> tuple[str, int]:
        """The place and the instance that receive."""
        return self.transfer.target, self.target

    @functools.cached_property
    def specs(self) -> list[Spec]:
        """The arrays of one message on the host, as this end has them: shapes and dtypes."""
        return packing(self.arrays).specs(packed=self.packed)

    @property
    def message_nbytes(self) -> int:
        """The bytes that one message takes."""
        return slot_layout(self.specs)[1]

    def views(self, buffer: Any) -> list[np.ndarray]:
        """The arrays of a message that lies in these bytes."""
        starts = slot_layout(self.specs)[0]
        return [
            np.ndarray(shape, dtype, buffer, start)
            for (shape, dtype), start in zip(self.specs, starts, strict=True)
        ]


def is_sample(plan: Plan, transfer: Transfer) -> bool:
    """Whether this is a part of what is made for the place that sends through a free channel."""
    return plan.free is not None and plan.free.is_sample(transfer)


def versions(plan: Plan) -> list[Transfer]:
    """What crosses through a free channel, together."""
    return [t for t in plan.projection.transfers if is_version(plan, t)]


def version_specs(plan: Plan) -> list[jax.ShapeDtypeStruct]:
    """The arrays of a version."""
    values = [plan.graph.values[v] for t in versions(plan) for v in t.values]
    return [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in values]


def links(plan: Plan) -> Iterator[Link]:
    """Every link that the instances of a plan need; versions go another way."""
    for t in plan.projection.transfers:
        if is_version(plan, t):
            continue
        route, channel = Route.of(plan, t), plan.channel_of(t)
        for a, b in route.pairs():
            values = crossing(plan, t, a, b)
            arrays = tuple(_array(plan, t, route, v) for v in values)
            slots, named = plan.slots(t) * plan.cuts(t), channel.transport
            yield Link(t, a, b, values, arrays, slots, channel.delay, transport=named)


def late_links(plan: Plan) -> list[Link]:
    """The links of late channels."""
    return [link for link in links(plan) if plan.channel_of(link.transfer).lag]


def late_names(plan: Plan, link: Link) -> list[list[str]]:
    """Names for what is on its way in a late link: of each array of each message, oldest first."""
    lag = plan.channel_of(link.transfer).lag
    head = "-".join(map(str, link.key))
    return [[f"{head}-{k}-{j}" for j in range(len(link.arrays))] for k in range(lag)]


def late_specs(plan: Plan) -> dict[str, jax.ShapeDtypeStruct]:
    """All that is on its way between two blocks of a plan with late channels."""
    return {
        name: spec
        for link in late_links(plan)
        for names in late_names(plan, link)
        for name, spec in zip(names, link.arrays, strict=True)
    }


def _array(plan: Plan, transfer: Transfer, route: Route, value: int) -> jax.ShapeDtypeStruct:
    found, axis = plan.graph.values[value], plan.axes.axis(value)
    shape: list[Any] = list(found.shape)
    if axis is not None:
        shape[axis] //= max(route.sources, route.targets) * plan.cuts(transfer)
    return jax.ShapeDtypeStruct(tuple(shape), found.dtype)
