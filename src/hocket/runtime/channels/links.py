"""Links and the layout of their messages. A link goes from one sender to one receiver."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import numpy as np

from hocket.core.graph.trace import ValueId
from hocket.core.plan.data import Plan
from hocket.core.plan.traffic import leaders, pairs
from hocket.core.projection.instructions import Transfer, TransferId
from hocket.runtime.channels.packing import packing
from hocket.system.ring import Spec, slot_layout

LinkKey: TypeAlias = tuple[TransferId, int, int]  # (transfer, source instance, target instance)


@dataclass(frozen=True)
class Link:
    """The part of a transfer that goes from one instance, `source`, to another, `target`."""

    transfer: Transfer
    source: int
    target: int
    values: tuple[ValueId, ...]
    """The values of the transfer that this link carries."""
    arrays: tuple[jax.ShapeDtypeStruct, ...]
    """The shapes and dtypes of one message's JAX arrays, before packing."""
    slots: int
    """The number of messages that may be sent before the first of them is received."""
    delay: float = 0.0
    """Seconds added to the delivery of every message, to try out a slow network."""
    packed: bool = False
    """True if this end sees the small arrays of a message as one block."""
    transport: str = ""
    """The transport that the channel names; empty if it names none."""

    @property
    def key(self) -> LinkKey:
        return self.transfer.id, self.source, self.target

    @property
    def name(self) -> str:
        return f"{self.transfer.source}/{self.source} -> {self.transfer.target}/{self.target}"

    @property
    def end(self) -> tuple[str, int]:
        """The place and the index of the receiving instance."""
        return self.transfer.target, self.target

    @functools.cached_property
    def specs(self) -> list[Spec]:
        """The numpy shapes and dtypes of one message's arrays, as this end sees them."""
        return packing(self.arrays).specs(packed=self.packed)

    @property
    def message_nbytes(self) -> int:
        """The size of one message in bytes."""
        return slot_layout(self.specs)[1]

    def views(self, buffer: Any) -> list[np.ndarray]:
        """Return the arrays of a message that lies in `buffer`, as views of it."""
        starts = slot_layout(self.specs)[0]
        return [
            np.ndarray(shape, dtype, buffer, start)
            for (shape, dtype), start in zip(self.specs, starts, strict=True)
        ]


def versions(plan: Plan) -> list[Transfer]:
    """Return the transfers from a learner to its makers that carry versions of the parameters.

    Only a plan with lag=free has any.
    """
    return [t for t in plan.projection.transfers if plan.free and plan.free.is_version(t)]


def version_specs(plan: Plan) -> list[jax.ShapeDtypeStruct]:
    """Return the shape and dtype of each array in a version of the parameters."""
    values = [plan.graph.values[v] for t in versions(plan) for v in t.values]
    return [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in values]


def links(plan: Plan) -> Iterator[Link]:
    """Yield every link between the instances of a plan.

    With lag=free, parameters need no links, because makers read the newest ones from memory.
    """
    free = plan.free
    for t in plan.projection.transfers:
        if free and free.is_version(t):
            continue
        every, channel = pairs(plan, t), plan.channel_of(t)
        leader, slots, named = leaders(every), plan.slots(t) * plan.cuts(t), channel.transport
        # Thousands of links have the same messages, so each of the two kinds is described once.
        split = tuple(v for v in t.values if plan.axes.axis(v) is not None)
        messages = {
            leads: (values, tuple(_array(plan, t, len(every), v) for v in values))
            for leads, values in ((True, t.values), (False, split))
        }
        for a, b in every:
            values, arrays = messages[a == leader[b] or (free is not None and free.is_any(t))]
            yield Link(t, a, b, values, arrays, slots, channel.delay, transport=named)


def _array(plan: Plan, transfer: Transfer, shares: int, value: ValueId) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype that a value has in one message of a transfer.

    A value with an environment axis is divided among `shares` links. If a loop handles the
    environments in parts, each of its messages has the values of one part.
    """
    whole, axis = plan.graph.values[value], plan.axes.axis(value)
    shape: list[Any] = list(whole.shape)
    if axis is not None:
        shape[axis] //= shares * plan.cuts(transfer)
    return jax.ShapeDtypeStruct(tuple(shape), whole.dtype)
