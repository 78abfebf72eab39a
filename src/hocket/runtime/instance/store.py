"""The values of one instance, and how it holds each of them on its devices.

Where replicas run as one program, whatever is not uniform is held stacked: a row for each replica.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from hocket.cluster.devices import find_devices
from hocket.core.graph.trace import ValueId
from hocket.core.plan.data import Plan
from hocket.runtime.channels.choice import devices_of
from hocket.runtime.instance.replicas import (
    home,
    merge_axis,
    replica_mesh,
    split_axis,
    without_aliases,
)

Values: TypeAlias = dict[ValueId, Any]


class Store:
    """The part of the state that replica `index` of a place holds between iterations."""

    def __init__(self, plan: Plan, place: str, index: int) -> None:
        spot, placement = plan.place(place), plan.projection.placement
        self.replicas, self._index = spot.replicas, index
        self.grouped = place in plan.grouped
        self.axis = plan.axes.axis
        devices = find_devices(devices_of(plan, place, index))
        self.mesh = replica_mesh(devices, spot.replicas if self.grouped else 1)
        self.devices: tuple[Any, ...] = tuple(self.mesh.devices.flat)
        self._here = set(self.devices)
        # A program takes the host's memory as it is on the device that jax uses by default.
        self.is_default = self.devices == (jax.local_devices()[0],)
        kinds = plan.kinds[place] if self.grouped else {}
        rows = (v for v, kind in kinds.items() if kind.tag != "uniform")
        self.stacked = frozenset(rows) - plan.graph.constants.keys()
        self.values: Values = {}
        pairs = zip(plan.graph.block.inputs, plan.graph.block.outputs, strict=False)
        self._holds = [(v, out) for v, out in pairs if placement.home[v] == place]

    def load(self, leaves: Mapping[ValueId, Any]) -> None:
        """Take this instance's part of a state; always a copy, since it will be donated."""
        self.values = {}
        for value, _ in self._holds:
            x, axis = jnp.copy(leaves[value]), self.axis(value)
            if axis is not None and self.replicas > 1:
                parts = split_axis(x, axis, self.replicas)
                x = parts if self.grouped else parts[self._index]
            self.values[value] = jax.device_put(x, self.home(value))

    def keep(self, values: Values) -> None:
        """Hold what an iteration has made of the state."""
        self.values = without_aliases({v: values[out] for v, out in self._holds})

    def held(self) -> Values:
        """A copy of this instance's part of the state, whose memory is used again."""
        return {v: jnp.copy(self.whole(v, x)) for v, x in self.values.items()}

    def home(self, value: ValueId) -> NamedSharding:
        """How this instance holds a value on its devices."""
        return home(self.mesh, self.axis(value), stacked=self.grouped)

    def whole(self, value: ValueId, x: Any) -> Any:
        """A value without rows, as other places have it."""
        axis = self.axis(value) if value in self.stacked else None
        return x if axis is None else merge_axis(x, axis)

    def rows(self, value: ValueId, x: Any) -> Any:
        """A whole value as it is held here."""
        axis = self.axis(value) if self.grouped else None
        return x if axis is None else split_axis(x, axis, self.replicas)

    def batch(self, value: ValueId, x: Any) -> Any:
        """A value of all replicas of one program, as a host function takes it: one batch."""
        return x.reshape(-1, *x.shape[2:]) if value in self.stacked else x

    def unbatch(self, value: ValueId, x: Any) -> Any:
        """What a host function has returned, as it is held here."""
        return x.reshape(self.replicas, -1, *x.shape[1:]) if value in self.stacked else x

    def is_here(self, x: Any, *, once: bool) -> bool:
        """Whether an array can be used as it is: on this instance's only device, or `once`.

        A program that is given the host's memory copies it by itself, sooner than JAX puts it on a
        device.
        """
        if len(self.devices) > 1:
            return False
        if isinstance(x, jax.Array):
            return x.devices() == self._here
        return once and self.is_default

    def put(self, chosen: Sequence[ValueId], values: Values) -> None:
        """Put some of the values on this instance's devices."""
        if chosen:  # a call takes 100 us even where there is nothing to do
            put = jax.device_put([values[v] for v in chosen], [self.home(v) for v in chosen])
            values |= zip(chosen, put, strict=True)

    def put_host_arrays(self, chosen: Sequence[ValueId], values: Values) -> None:
        """Put what host functions have returned where programs do not take it as it is."""
        if not self.is_default:
            self.put([v for v in chosen if isinstance(values[v], np.ndarray)], values)
