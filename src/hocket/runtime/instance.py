"""One running replica of a place: it interprets its projection, segment by segment."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from hocket.cluster.devices import find_devices
from hocket.core.averaged import averaging
from hocket.core.backend import backend
from hocket.core.graph import Graph
from hocket.core.plan import Plan
from hocket.core.project import Compute, Instruction, Receive, Repeat, Send, Transfer
from hocket.runtime.channel import Pipe
from hocket.runtime.replicas import (
    cut_parts,
    home,
    join_parts,
    map_program,
    merge_axis,
    replica_mesh,
    split_axis,
)
from hocket.runtime.route import Link, Route, late_links, late_names
from hocket.runtime.segment import Segment, arguments
from hocket.runtime.status import IDLE, RECEIVING, SENDING, WORKING
from hocket.runtime.timeline import Span
from hocket.runtime.tune import tuning_for

Pipes = Mapping[tuple[int, int, int], Pipe]  # (transfer, source instance, target instance)
Values = dict[int, Any]

MAX_SPANS = 500_000
"""What a timeline keeps of one instance; those after it are counted, not kept."""


class Instance:
    """Runs the program of a place, as replica `index` of it."""

    def __init__(
        self,
        plan: Plan,
        place: str,
        index: int,
        pipes: Pipes,
        status: Any,
        average: Callable[..., Any] | None = None,
    ) -> None:
        self.plan, self.place, self.index = plan, place, index
        self.pipes, self.status, self._average = pipes, status, average
        self.name = f"{place}/{index}"
        self.spot = plan.place(place)
        self.grouped = place in plan.grouped
        self.graph: Graph = plan.graph.at(plan.graph.num_envs // self.spot.replicas)
        self.code = plan.projection.programs[place]
        names = self.spot.on if self.grouped else self.spot.share(index)
        self.mesh = replica_mesh(find_devices(names), self.spot.replicas if self.grouped else 1)
        self.values: Values = {}
        self.iteration = 0
        self.spans: list[Span] | None = None
        self.spans_left_out = 0
        self._late: dict[tuple[int, int], deque[list[Any]]] = {}  # by transfer and source
        self._segments: dict[tuple[Compute, int], Segment] = {}
        home, block, leaves = (
            plan.projection.placement.home,
            plan.graph.block,
            plan.graph.num_leaves,
        )
        pairs = list(zip(block.inputs, block.outputs, strict=False))
        self.holds = [(v, out) for v, out in pairs if home[v] == place]
        self.reports = [v for v in block.outputs[leaves:] if home[v] == place]
        self._order = {p.name: k for k, p in enumerate(plan.places)}

    def load(self, leaves: Mapping[int, Any], late: Mapping[str, Any]) -> None:
        """Take this instance's part of the state; always a copy, since it will be donated.

        `late` is what was on its way in late channels, as `late` of all instances had it.
        """
        self.values, self.iteration, self._late = {}, 0, {}
        for link in self._late_links() if late else ():
            line = deque([late[name] for name in names] for names in late_names(self.plan, link))
            self._late[link.transfer.id, link.source] = line
        for value, _ in self.holds:
            x, axis = jnp.copy(leaves[value]), self.plan.axes.axis(value)
            replicas = self.spot.replicas
            if axis is not None and replicas > 1:
                parts = split_axis(x, axis, replicas)
                x = parts if self.grouped else parts[self.index]
            self.values[value] = self._put(value, x)

    def held(self) -> dict[int, Any]:
        """A copy of this instance's part of the state, whose memory is used again."""
        return {v: jnp.copy(self._whole(v, self.values[v])) for v, _ in self.holds}

    def late(self) -> dict[str, Any]:
        """What is on its way to this instance in late channels, one message for each iteration."""
        return {
            name: x
            for link in self._late_links()
            if (line := self._late.get((link.transfer.id, link.source)))
            for names, message in zip(late_names(self.plan, link), line, strict=True)
            for name, x in zip(names, message, strict=True)
        }

    def run(self, count: int) -> dict[int, np.ndarray]:
        """So many iterations; the metrics that this place makes, `[count, ...]`."""
        start = time.perf_counter_ns()
        self.status["phase"] = WORKING
        try:
            with self._choices():
                rows = [self._iterate() for _ in range(count)]
            self._catch_up()
            return {
                v: np.stack([np.asarray(row[k]) for row in rows])
                for k, v in enumerate(self.reports)
            }
        finally:
            self.status["phase"] = IDLE
            self.status["working"] += time.perf_counter_ns() - start

    def _iterate(self) -> list[Any]:
        values = {**self.graph.constants, **self.values}
        for _ in self._run(self.code, values, 1):
            pass
        self.values = _without_aliases({v: values[out] for v, out in self.holds})
        self.iteration += 1
        self.status["iteration"] = self.iteration
        return [self._whole(v, values[v]) for v in self.reports]

    def text(self) -> str:
        """The compiled programs of all segments, as XLA prints them."""
        found = []
        with self._choices():
            for (step, parts), segment in self._segments.items():
                specs = [self._spec(v, parts) for v in arguments(step)]
                found.append(segment.fn.lower(*specs).compile().as_text())
        return "\n".join(found)

    @contextlib.contextmanager
    def _choices(self) -> Iterator[None]:
        """Within, programs are compiled with this place's backend and its way to average."""
        average = averaging(self._average) if self._average else contextlib.nullcontext()
        with backend(self.spot.backend), average:
            yield

    def _run(self, code: Sequence[Instruction], values: Values, parts: int) -> Iterator[None]:
        """Follow a program. Yields before every receive, where another part may take its turn."""
        for step in code:
            match step:
                case Compute():
                    self._compute(step, values, parts)
                case Send(transfer):
                    self._send(transfer, values)
                case Receive(transfer):
                    yield
                    self._receive(transfer, values)
                case Repeat():
                    if step.node in self.plan.cut_loops and parts == 1:
                        self._repeat_in_parts(step, values)
                    else:
                        yield from self._repeat(step, values, parts)

    def _compute(self, step: Compute, values: Values, parts: int) -> None:
        segment = self._segment(step, parts)
        args = [values[v] for v in arguments(step)]
        start = time.perf_counter()
        outs = segment.fn(*args)
        if self.spans is not None:
            jax.block_until_ready(outs)
            self._note("compute", segment.name, start)
        for v in step.dead:
            del values[v]
        values |= zip(step.outs, outs, strict=True)

    def _repeat_in_parts(self, loop: Repeat, values: Values) -> None:
        """Parts of the environments take turns: one steps while another waits for its actions."""
        parts, blocks = self.plan.parts, self.plan.blocks(loop.node) // self.spot.replicas
        axes = {v: self.plan.axes.axis(v) for v in (*loop.reads, *loop.makes)}
        cut = {v: cut_parts(values[v], axes[v], parts, blocks) for v in loop.reads}
        shares = [{v: cut[v][k] for v in loop.reads} for k in range(parts)]
        turns = [self._repeat(loop, share, parts) for share in shares]
        while turns:
            turns = [turn for turn in turns if next(turn, self) is not self]
        for v in loop.makes:
            values[v] = join_parts([share[v] for share in shares], axes[v], blocks)

    def _repeat(self, loop: Repeat, values: Values, parts: int) -> Iterator[None]:
        fixed = {inside: values[outside] for outside, inside in loop.consts}
        carry = {inside: values[first] for first, inside, _, _ in loop.carry}
        rows: list[list[Any]] = [[] for _ in loop.ys]
        order = range(loop.length)
        for t in reversed(order) if loop.reverse else order:
            xs = {inside: self._row(outside, values, t) for outside, inside in loop.xs}
            inner = {**self.graph.constants, **fixed, **carry, **xs}
            yield from self._run(loop.code, inner, parts)
            carry = {inside: inner[out] for _, inside, out, _ in loop.carry}
            for made, (inside, _) in zip(rows, loop.ys, strict=True):
                made.append(inner[inside])
        for _, inside, _, after in loop.carry:
            values[after] = carry[inside]
        ordered = [made[::-1] if loop.reverse else made for made in rows]
        axes = tuple(1 if self._rows(inside) else 0 for inside, _ in loop.ys)
        stacked = _stack(ordered, axes)
        values |= {after: x for (_, after), x in zip(loop.ys, stacked, strict=True)}
        for outside, after in loop.kept:
            values[after] = values[outside]

    def _row(self, value: int, values: Values, t: int) -> Any:
        return values[value][:, t] if self._rows(value) else values[value][t]

    def _segment(self, step: Compute, parts: int) -> Segment:
        if (step, parts) not in self._segments:
            mapped = None
            if self.grouped:
                ins = [self._rows(v) for v in arguments(step)]
                outs = [self._rows(v) for v in step.outs]
                mapped = lambda fn: map_program(fn, ins, outs, self.mesh)  # noqa: E731
            self._segments[step, parts] = Segment(self._graph_of(parts), step, mapped)
        return self._segments[step, parts]

    def _graph_of(self, parts: int) -> Graph:
        """The step as this instance compiles it: for its environments, and for its devices."""
        choice = tuning_for(self.mesh.devices.ravel().tolist(), exact=self.graph.exact)
        return self.plan.graph.at(self.graph.num_envs // parts, choice)

    def _rows(self, value: int) -> bool:
        """Whether a value is held stacked by replica here: all that is not uniform."""
        if not self.grouped or value in self.graph.constants:
            return False
        return self.plan.kinds[self.place][value].tag != "uniform"

    def _send(self, transfer: Transfer, values: Values) -> None:
        route = Route.of(self.plan, transfer)
        targets = [t for s, t in route.pairs() if s == self.index]
        whole = {v: self._whole(v, values[v]) for v in transfer.values}
        jax.block_until_ready(list(whole.values()))  # whoever receives it need not wait again
        for part, target in enumerate(targets):
            message = []
            for v, x in whole.items():
                axis = self.plan.axes.axis(v)
                if axis is not None:
                    message.append(
                        split_axis(x, axis, route.cuts())[part] if route.cuts() > 1 else x
                    )
                elif route.leads(self.index, target):
                    message.append(x)
            self._hand_over(transfer, target, message)

    def _hand_over(self, transfer: Transfer, target: int, message: list[Any]) -> None:
        pipe = self.pipes[transfer.id, self.index, target]
        start, waited = time.perf_counter(), pipe.waited[0]
        self._waits(SENDING, transfer, target)
        pipe.send(message)
        nbytes = sum(x.size * x.dtype.itemsize for x in message)
        self.status["sent"] += nbytes
        self.status["messages"] += 1
        self.status["crossed"][transfer.id] += nbytes
        self._moved(transfer.target, pipe.waited[0] - waited)
        if self.spans is not None:
            name = f"{self.name} -> {transfer.target}/{target} #{transfer.id}"
            self._note("wait", transfer.target, start, start + (pipe.waited[0] - waited) / 1e9)
            self._note("send", name, start, nbytes=nbytes)

    def _take(self, transfer: Transfer, source: int) -> list[Any]:
        """The message for this iteration. A late reader has the first one for those to come too."""
        lag, key = self.plan.channel(transfer.source, transfer.target).lag, (transfer.id, source)
        if lag and self._late.get(key):
            return self._late[key].popleft()
        message = self._await(transfer, source)
        if lag and key not in self._late:
            self._late[key] = deque([message] * lag)
        return message

    def _catch_up(self) -> None:
        """After a block, what is late is here and not in a pipe: it is part of how a run stands."""
        for link in self._late_links():
            line = self._late[link.transfer.id, link.source]
            while len(line) < self.plan.channel(link.transfer.source, link.transfer.target).lag:
                line.append(self._await(link.transfer, link.source))

    def _late_links(self) -> list[Link]:
        return [x for x in late_links(self.plan) if x.end == (self.place, self.index)]

    def _await(self, transfer: Transfer, source: int) -> list[Any]:
        pipe = self.pipes[transfer.id, source, self.index]
        start, waited = time.perf_counter(), pipe.waited[1]
        self._waits(RECEIVING, transfer, source)
        message = pipe.receive()
        self._moved(transfer.source, pipe.waited[1] - waited)
        if self.spans is not None:
            name = f"{transfer.source}/{source} -> {self.name} #{transfer.id}"
            nbytes = sum(x.size * x.dtype.itemsize for x in message)
            self._note("wait", transfer.source, start, start + (pipe.waited[1] - waited) / 1e9)
            self._note("receive", name, start, nbytes=nbytes)
        return message

    def _receive(self, transfer: Transfer, values: Values) -> None:
        route = Route.of(self.plan, transfer)
        sources = [s for s, t in route.pairs() if t == self.index]
        parts: dict[int, list[Any]] = {v: [] for v in transfer.values}
        for source in sources:
            message = iter(self._take(transfer, source))
            for v in transfer.values:
                if self.plan.axes.axis(v) is not None or route.leads(source, self.index):
                    parts[v].append(next(message))
        whole = {v: self._joined(v, found) for v, found in parts.items()}
        away = [v for v, x in whole.items() if not self._is_here(x)]
        if away:  # a call takes 100 us even where there is nothing to do
            put = jax.device_put([whole[v] for v in away], [self.home(v) for v in away])
            whole |= zip(away, put, strict=True)
        values |= whole

    def _is_here(self, x: Any) -> bool:
        """Whether an array is on this instance's only device already."""
        one = self.mesh.size == 1 and isinstance(x, jax.Array)
        return one and x.devices() == set(self.mesh.devices.flat)

    def _joined(self, value: int, found: list[Any]) -> Any:
        """A received value as this place holds it, from the parts that its sources sent."""
        axis, x = self.plan.axes.axis(value), found[0]
        if len(found) > 1 and axis is not None:
            x = jnp.concatenate([jax.device_put(y, self.home(value)) for y in found], axis)
        return split_axis(x, axis, self.spot.replicas) if axis is not None and self.grouped else x

    def _waits(self, phase: int, transfer: Transfer, peer: int) -> None:
        self.status["transfer"], self.status["peer"] = transfer.id, peer
        self.status["phase"] = phase

    def _moved(self, place: str, nanoseconds: int) -> None:
        self.status["waited"][self._order[place]] += nanoseconds
        self.status["moves"] += 1
        self.status["phase"] = WORKING

    def _note(
        self, kind: str, name: str, start: float, end: float | None = None, nbytes: int = 0
    ) -> None:
        assert self.spans is not None
        if len(self.spans) >= MAX_SPANS:
            self.spans_left_out += 1
            return
        end = time.perf_counter() if end is None else end
        self.spans.append(Span(self.name, kind, name, start, end, nbytes, self.iteration))

    def _whole(self, value: int, x: Any) -> Any:
        axis = self.plan.axes.axis(value)
        return merge_axis(x, axis) if self._rows(value) and axis is not None else x

    def _put(self, value: int, x: Any) -> Any:
        return jax.device_put(x, self.home(value))

    def home(self, value: int) -> NamedSharding:
        """How this instance holds a value on its devices."""
        return home(self.mesh, self.plan.axes.axis(value), stacked=self.grouped)

    def _spec(self, value: int, parts: int) -> jax.ShapeDtypeStruct:
        v = self._graph_of(parts).values[value]
        rows = (self.spot.replicas,) if self._rows(value) else ()
        return jax.ShapeDtypeStruct((*rows, *v.shape), v.dtype)


def _without_aliases(values: Values) -> Values:
    """Two leaves of a state may be one array; each gets its own before either is donated."""
    seen: set[int] = set()
    for v, x in values.items():
        if id(x) in seen:
            values[v] = jnp.copy(x)
        seen.add(id(x))
    return values


@jax.jit
def _stacked(rows: list[list[Any]], axes: Any) -> list[Any]:
    return [jnp.stack(made, axis.ndim) for made, axis in zip(rows, axes, strict=True)]


def _stack(rows: list[list[Any]], axes: tuple[int, ...]) -> list[Any]:
    """Each list of rows as one array, all in one program: a call for each takes 3x as long."""
    # The axis is told by a shape, which is static where a number would be traced.
    return _stacked(rows, [np.zeros((1,) * axis) for axis in axes])
