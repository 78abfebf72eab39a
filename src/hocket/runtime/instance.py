"""One running replica of a place: it interprets its projection, segment by segment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from hocket.cluster.devices import find_devices
from hocket.core.graph import Graph
from hocket.core.plan import Plan
from hocket.core.project import Compute, Instruction, Receive, Repeat, Send, Transfer
from hocket.runtime.channel import Pipe
from hocket.runtime.replicas import map_program, merge_axis, split_axis

Pipes = Mapping[tuple[int, int, int], Pipe]  # (transfer, source instance, target instance)
Values = dict[int, Any]


@dataclass(frozen=True)
class Route:
    """Which instances of two places exchange parts of a value, and how each part is cut."""

    sources: int
    targets: int

    def cuts(self) -> int:
        """Into how many parts a source cuts a per-environment value."""
        return max(1, self.targets // self.sources)

    def pairs(self) -> list[tuple[int, int]]:
        most = max(self.sources, self.targets)
        return [(k * self.sources // most, k * self.targets // most) for k in range(most)]

    def leads(self, source: int, target: int) -> bool:
        """Whether this source is the one that sends the target what is uniform."""
        return source == next(s for s, t in self.pairs() if t == target)


class Instance:
    """Runs the program of a place, as replica `index` of it."""

    def __init__(self, plan: Plan, place: str, index: int, pipes: Pipes) -> None:
        self.plan, self.place, self.index, self.pipes = plan, place, index, pipes
        self.name = f"{place}/{index}"
        spot = plan.place(place)
        self.grouped = place in plan.grouped
        self.graph: Graph = plan.graph.at(plan.graph.num_envs // spot.replicas)
        self.code = plan.projection.programs[place]
        devices = find_devices(spot.on)
        if spot.replicas > 1 and not self.grouped:
            devices = [devices[index % len(devices)]]
        self.mesh = Mesh(np.array(devices), ("devices",), axis_types=(AxisType.Auto,))
        self.values: Values = {}
        self._segments: dict[Compute, Any] = {}  # jitted
        home, block, leaves = (
            plan.projection.placement.home,
            plan.graph.block,
            plan.graph.num_leaves,
        )
        pairs = list(zip(block.inputs, block.outputs, strict=False))
        self.holds = [(v, out) for v, out in pairs if home[v] == place]
        self.reports = [v for v in block.outputs[leaves:] if home[v] == place]

    def load(self, leaves: Sequence[Any]) -> None:
        """Take this instance's part of the whole state; always a copy, since it will be donated."""
        self.values = {}
        for value, _ in self.holds:
            x, axis = jnp.copy(leaves[value]), self.plan.axes.axis(value)
            replicas = self.plan.place(self.place).replicas
            if axis is not None and replicas > 1:
                parts = split_axis(x, axis, replicas)
                x = parts if self.grouped else parts[self.index]
            self.values[value] = self._put(value, x)

    def held(self, value: int) -> Any:
        """A copy of this instance's part of a leaf of the state, whose memory is used again."""
        return jnp.copy(self._whole(value, self.values[value]))

    def iterate(self) -> list[Any]:
        """One iteration; the metrics that this place makes."""
        values = {**self.graph.constants, **self.values}
        self._run(self.code, values)
        self.values = _without_aliases({v: values[out] for v, out in self.holds})
        return [self._whole(v, values[v]) for v in self.reports]

    def text(self) -> str:
        """The compiled programs of all segments, as XLA prints them."""
        return "\n".join(
            fn.lower(*[self._spec(v) for v in (*step.donate, *_rest(step))]).compile().as_text()
            for step, fn in self._segments.items()
        )

    def _run(self, code: Sequence[Instruction], values: Values) -> None:
        for step in code:
            match step:
                case Compute():
                    args = [values[v] for v in (*step.donate, *_rest(step))]
                    outs = self._segment(step)(*args)
                    values |= zip(step.outs, outs, strict=True)
                case Send(transfer):
                    self._send(transfer, values)
                case Receive(transfer):
                    self._receive(transfer, values)
                case Repeat():
                    self._repeat(step, values)

    def _repeat(self, loop: Repeat, values: Values) -> None:
        fixed = {inside: values[outside] for outside, inside in loop.consts}
        carry = {inside: values[first] for first, inside, _, _ in loop.carry}
        rows: list[list[Any]] = [[] for _ in loop.ys]
        order = range(loop.length)
        for t in reversed(order) if loop.reverse else order:
            xs = {inside: self._row(outside, values, t) for outside, inside in loop.xs}
            inner = {**self.graph.constants, **fixed, **carry, **xs}
            self._run(loop.code, inner)
            carry = {inside: inner[out] for _, inside, out, _ in loop.carry}
            for made, (inside, _) in zip(rows, loop.ys, strict=True):
                made.append(inner[inside])
        for _, inside, _, after in loop.carry:
            values[after] = carry[inside]
        for made, (inside, after) in zip(rows, loop.ys, strict=True):
            ordered = made[::-1] if loop.reverse else made
            values[after] = jnp.stack(ordered, axis=1 if self._rows(inside) else 0)
        for outside, after in loop.kept:
            values[after] = values[outside]

    def _row(self, value: int, values: Values, t: int) -> Any:
        return values[value][:, t] if self._rows(value) else values[value][t]

    def _segment(self, step: Compute) -> Callable[..., Sequence[Any]]:
        if step not in self._segments:
            fn = _build(self.graph, step)
            if self.grouped:
                ins = [self._rows(v) for v in (*step.donate, *_rest(step))]
                fn = map_program(fn, ins, [self._rows(v) for v in step.outs], self.mesh)
            self._segments[step] = jax.jit(fn, donate_argnums=range(len(step.donate)))
        return self._segments[step]

    def _rows(self, value: int) -> bool:
        """Whether a value is held stacked by replica here: all that is not uniform."""
        if not self.grouped or value in self.graph.constants:
            return False
        return self.plan.kinds[self.place][value].tag != "uniform"

    def _send(self, transfer: Transfer, values: Values) -> None:
        route = self._route(transfer)
        targets = [t for s, t in route.pairs() if s == self.index]
        for part, target in enumerate(targets):
            message = []
            for v in transfer.values:
                x, axis = self._whole(v, values[v]), self.plan.axes.axis(v)
                if axis is not None:
                    message.append(
                        split_axis(x, axis, route.cuts())[part] if route.cuts() > 1 else x
                    )
                elif route.leads(self.index, target):
                    message.append(x)
            self.pipes[transfer.id, self.index, target].send(message)

    def _receive(self, transfer: Transfer, values: Values) -> None:
        route = self._route(transfer)
        sources = [s for s, t in route.pairs() if t == self.index]
        parts: dict[int, list[Any]] = {v: [] for v in transfer.values}
        for source in sources:
            message = iter(self.pipes[transfer.id, source, self.index].receive())
            for v in transfer.values:
                if self.plan.axes.axis(v) is not None or route.leads(source, self.index):
                    parts[v].append(next(message))
        for v, found in parts.items():
            axis = self.plan.axes.axis(v)
            x = found[0]
            if len(found) > 1 and axis is not None:
                x = jnp.concatenate([jax.device_put(y, self._home(v)) for y in found], axis)
            if axis is not None and self.grouped:
                x = split_axis(x, axis, self.plan.place(self.place).replicas)
            values[v] = self._put(v, x)

    def _route(self, transfer: Transfer) -> Route:
        return Route(self.plan.instances(transfer.source), self.plan.instances(transfer.target))

    def _whole(self, value: int, x: Any) -> Any:
        axis = self.plan.axes.axis(value)
        return merge_axis(x, axis) if self._rows(value) and axis is not None else x

    def _put(self, value: int, x: Any) -> Any:
        return jax.device_put(x, self._home(value))

    def _home(self, value: int) -> NamedSharding:
        axis = self.plan.axes.axis(value) if self.mesh.size > 1 else None
        if axis is None:
            return NamedSharding(self.mesh, PartitionSpec())
        axis = 0 if self.grouped else axis
        return NamedSharding(self.mesh, PartitionSpec(*[None] * axis, "devices"))

    def _spec(self, value: int) -> jax.ShapeDtypeStruct:
        v = self.graph.values[value]
        rows = (self.plan.place(self.place).replicas,) if self._rows(value) else ()
        return jax.ShapeDtypeStruct((*rows, *v.shape), v.dtype)


def _rest(step: Compute) -> list[int]:
    return [v for v in step.ins if v not in step.donate]


def _build(graph: Graph, step: Compute) -> Callable[..., list[Any]]:
    """The function of a segment: its nodes one after another."""

    def segment(*args: Any) -> list[Any]:
        values = {**graph.constants, **dict(zip((*step.donate, *_rest(step)), args, strict=True))}
        for number in step.nodes:
            node = graph.nodes[number]
            values |= zip(node.outs, node([values[v] for v in node.ins]), strict=True)
        # What a node only passes on would share a buffer with its input, which others may hold.
        given = {id(x) for x in args}
        outs = [values[v] for v in step.outs]
        return [jnp.copy(x) if id(x) in given else x for x in outs]

    return segment


def _without_aliases(values: Values) -> Values:
    """Two leaves of a state may be one array; each gets its own before either is donated."""
    seen: set[int] = set()
    for v, x in values.items():
        if id(x) in seen:
            values[v] = jnp.copy(x)
        seen.add(id(x))
    return values
