"""The values of one instance, and how it holds each of them on its devices.

If replicas run as one program, the values that differ between replicas are stacked, with a row for
each replica.
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
    """The values that replica `index` of a place holds between iterations."""

    def __init__(self, plan: Plan, place: str, index: int) -> None:
        spot, placement = plan.place(place), plan.projection.placement
        self.replicas, self._index = spot.replicas, index
        self.grouped = place in plan.grouped
        self.axis = plan.axes.axis
        devices = find_devices(devices_of(plan, place, index))
        self.mesh = replica_mesh(devices, spot.replicas if self.grouped else 1)
        self.devices: tuple[Any, ...] = tuple(self.mesh.devices.flat)
        self._here = set(self.devices)
        # A program on JAX's default device takes numpy arrays as they are.
        self.is_default = self.devices == (jax.local_devices()[0],)
        kinds = plan.kinds[place] if self.grouped else {}
        rows = (v for v, kind in kinds.items() if kind.tag != "uniform")
        self.stacked = frozenset(rows) - plan.graph.constants.keys()
        self.values: Values = {}
        pairs = zip(plan.graph.block.inputs, plan.graph.block.outputs, strict=False)
        self._holds = [(v, out) for v, out in pairs if placement.home[v] == place]

    def load(self, leaves: Mapping[ValueId, Any]) -> None:
        """Take a copy of this instance's part of a state.

        It must be a copy, because the first iteration donates its arrays to a program.
        """
        self.values = {}
        for value, _ in self._holds:
            x, axis = jnp.copy(leaves[value]), self.axis(value)
            if axis is not None and self.replicas > 1:
                parts = split_axis(x, axis, self.replicas)
                x = parts if self.grouped else parts[self._index]
            self.values[value] = jax.device_put(x, self.home(value))

    def keep(self, values: Values) -> None:
        """Keep the new state, and drop the other values of an iteration."""
        self.values = without_aliases({v: values[out] for v, out in self._holds})

    def held(self) -> Values:
        """Return this instance's state, copied because the next iteration donates the original."""
        return {v: jnp.copy(self.whole(v, x)) for v, x in self.values.items()}

    def home(self, value: ValueId) -> NamedSharding:
        """Return the sharding with which this instance holds a value."""
        return home(self.mesh, self.axis(value), stacked=self.grouped)

    def whole(self, value: ValueId, x: Any) -> Any:
        """Merge the rows of a value, one per replica, into the array that other places expect.

        A value without rows is returned as it is.
        """
        axis = self.axis(value) if value in self.stacked else None
        return x if axis is None else merge_axis(x, axis)

    def rows(self, value: ValueId, x: Any) -> Any:
        """Undo `whole`: split a value into one row per replica, if replicas run as one program."""
        axis = self.axis(value) if self.grouped else None
        return x if axis is None else split_axis(x, axis, self.replicas)

    def batch(self, value: ValueId, x: Any) -> Any:
        """Merge the rows of a value, one per replica, into one batch for a host function.

        A value without rows is returned as it is.
        """
        return x.reshape(-1, *x.shape[2:]) if value in self.stacked else x

    def unbatch(self, value: ValueId, x: Any) -> Any:
        """Undo `batch`: split a host function's result into a row per replica, if it needs rows."""
        return x.reshape(self.replicas, -1, *x.shape[1:]) if value in self.stacked else x

    def is_here(self, x: Any, *, once: bool) -> bool:
        """Return True if programs can use an array as it is.

        A JAX array must be on this instance's only device. A numpy array that is read `once` may
        stay on the host if that device is JAX's default, because a program copies it to the device
        faster than `device_put` does.
        """
        if len(self.devices) > 1:
            return False
        if isinstance(x, jax.Array):
            return x.devices() == self._here
        return once and self.is_default

    def put(self, chosen: Sequence[ValueId], values: Values) -> None:
        """Put the `chosen` values on this instance's devices."""
        if chosen:  # `device_put` takes 100 us even for nothing
            put = jax.device_put([values[v] for v in chosen], [self.home(v) for v in chosen])
            values |= zip(chosen, put, strict=True)

    def put_host_arrays(self, chosen: Sequence[ValueId], values: Values) -> None:
        """Copy every numpy array among the `chosen` values to this instance's devices.

        If the only device is JAX's default, do nothing, since programs then take numpy arrays, too.
        """
        if not self.is_default:
            self.put([v for v in chosen if isinstance(values[v], np.ndarray)], values)
