"""One running replica of a place: it interprets its projection, segment by segment."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from hocket.cluster.devices import find_devices
from hocket.core.graph.host_calls import HostCall, host_call
from hocket.core.graph.trace import Graph, ValueId
from hocket.core.plan.data import Plan
from hocket.core.program.averaged import averaging
from hocket.core.program.backend import JAX, backend
from hocket.core.program.host import calling
from hocket.core.projection.host_loops import calls_inside, undriven, uses_host
from hocket.core.projection.instructions import (
    Compute,
    Host,
    Instruction,
    Receive,
    Repeat,
    Send,
    Transfer,
)
from hocket.runtime.averaging.choice import Reduction
from hocket.runtime.channels.joins import Join
from hocket.runtime.channels.packing import Packed, unpack
from hocket.runtime.compile.tuning import compiler_options, tuning_for
from hocket.runtime.host_calls.calls import HostFunctions, is_one_cpu
from hocket.runtime.instance.exchange import Exchange, Wait
from hocket.runtime.instance.metrics import Rows
from hocket.runtime.instance.replicas import (
    cut_parts,
    home,
    join_parts,
    join_values,
    map_program,
    merge_axis,
    replica_mesh,
    split_axis,
    stack_rows,
    without_aliases,
)
from hocket.runtime.instance.segment import Segment, Segments, arguments
from hocket.runtime.observe.status import IDLE, WORKING

Values = dict[ValueId, Any]


class Instance:
    """Runs the program of a place, as replica `index` of it."""

    def __init__(
        self,
        plan: Plan,
        place: str,
        index: int,
        exchange: Exchange,
        average: Reduction | None = None,
        segments: Segments | None = None,
    ) -> None:
        self.plan, self.place, self.index = plan, place, index
        self.exchange, self.status, self._average = exchange, exchange.status, average
        self.name = f"{place}/{index}"
        self.spot = plan.place(place)
        self.grouped = place in plan.grouped
        self.graph: Graph = plan.graph.at(plan.envs_of(place) // self.spot.replicas)
        self.code = plan.projection.programs[place]
        names = self.spot.on if self.grouped else self.spot.share(index)
        self.mesh = replica_mesh(find_devices(names), self.spot.replicas if self.grouped else 1)
        self._where = tuple(d.id for d in self.mesh.devices.flat)
        # A program takes the host's memory as it is on the device that jax uses by default.
        self._is_default = (
            self.mesh.size == 1 and self.mesh.devices.flat[0] == jax.local_devices()[0]
        )
        inside = is_one_cpu(self.mesh.devices.ravel().tolist()) and not self.grouped
        inside = inside and calls_inside(self.graph, self.code, plan.cut_loops)
        self.hosts = HostFunctions(self.name, inside=inside)
        self._since = 0
        self._calls: dict[int, HostCall | None] = {}
        self.values: Values = {}
        self._segments = Segments() if segments is None else segments
        self._own = Segments()  # that call this instance's host functions, and no other's
        placement, block = plan.projection.placement, plan.graph.block
        pairs = list(zip(block.inputs, block.outputs, strict=False))
        self.holds = [(v, out) for v, out in pairs if placement.home[v] == place]
        self.reports = [v for v, at in placement.reports.items() if at == place]

    def load(self, leaves: Mapping[int, Any], late: Mapping[str, Any]) -> None:
        """Take this instance's part of the state; always a copy, since it will be donated.

        `late` is what was on its way in late channels, as `late` of all instances had it.
        """
        self.values, self.status["iteration"] = {}, 0
        self.exchange.load(late)
        self.hosts.load(late if uses_host(self.code) else {})
        for value, _ in self.holds:
            x, axis = jnp.copy(leaves[value]), self.plan.axes.axis(value)
            replicas = self.spot.replicas
            if axis is not None and replicas > 1:
                parts = split_axis(x, axis, replicas)
                x = parts if self.grouped else parts[self.index]
            self.values[value] = jax.device_put(x, self.home(value))

    def late(self) -> dict[str, Any]:
        """What is on its way to this instance, and what its host functions keep."""
        return {**self.exchange.late(), **self.hosts.late()}

    def held(self) -> dict[int, Any]:
        """A copy of this instance's part of the state, whose memory is used again."""
        return {v: jnp.copy(self._whole(v, self.values[v])) for v, _ in self.holds}

    def run(self, count: int | None) -> dict[int, np.ndarray]:
        """So many iterations, or until there are no more; the metrics that this place makes.

        Those are `[count, ...]`, of iterations by number; of samples, their ages as `AGES`.
        """
        self._since = time.perf_counter_ns()
        self.status["phase"] = WORKING
        try:
            rows = Rows()
            for wait in self.steps(count, rows):
                if wait is not None:
                    self.exchange.wait(wait)
            return self.metrics(rows)
        finally:
            self.status["phase"] = IDLE
            self._count_time()

    def _count_time(self) -> None:
        since, self._since = self._since, time.perf_counter_ns()
        self.status["working"] += self._since - since

    def steps(self, count: int | None, rows: Rows) -> Iterator[Wait | None]:
        """Iterations, one step at a time; yields before it may have to wait for others."""
        done = 0
        while count is None or done < count:
            yield self.exchange.turn()
            if not self.exchange.begin():
                break
            values = {**self.graph.constants, **self.values}
            yield from self._run(self.code, values, 1)
            self.exchange.end()
            self.values = without_aliases({v: values[out] for v, out in self.holds})
            self.status["iteration"] += 1
            self._count_time()
            done += 1
            if self.reports:
                rows.add([self._whole(v, values[v]) for v in self.reports])
        self.exchange.catch_up()
        jax.block_until_ready(list(self.values.values()))  # whoever counts, counts all of it
        if self._average:
            self._average.check()
        self.exchange.count_averages(self._average, time.perf_counter())

    def metrics(self, rows: Rows) -> dict[int, np.ndarray]:
        """What some iterations have reported, each metric in one array."""
        found = dict(zip(self.reports, rows.columns(), strict=True))
        return {**found, **self.exchange.ages_since()}

    def compile(self) -> None:
        """Compile what an iteration begins with: other replicas find it in the cache."""
        step, values = self.code[0], {**self.graph.constants, **self.values}
        if isinstance(step, Compute):
            with self._choices():
                self._segment(step, 1).fn.lower(*[values[v] for v in arguments(step)]).compile()

    def _choices(self) -> contextlib.AbstractContextManager[None]:
        """Within, programs are compiled with this place's backend and its way to average."""
        usual = self.spot.backend == JAX and self._average is None
        return contextlib.nullcontext() if usual else self._chosen()

    @contextlib.contextmanager
    def _chosen(self) -> Iterator[None]:
        average = averaging(self._average) if self._average else contextlib.nullcontext()
        with backend(self.spot.backend), average:
            yield

    def _run(
        self, code: Sequence[Instruction], values: Values, parts: int
    ) -> Iterator[Wait | None]:
        """Follow a program. Yields before every receive, where another part may take its turn."""
        for step in code:
            match step:
                case Compute():
                    self._compute(step, values, parts)
                case Host():
                    yield from self._call_host(step, values)
                case Send(transfer):
                    self._send(transfer, values)
                case Receive(transfer):
                    sources = self.exchange.incoming[transfer.id].sources
                    yield self.exchange.may_receive(transfer, sources)
                    self._receive(transfer, values)
                case Repeat():
                    if step.node in self.plan.cut_loops and parts == 1:
                        self._repeat_in_parts(step, values)
                    elif self.hosts.inside and (whole := undriven(self.graph, step)):
                        yield None
                        self._compute_calling(whole, values, parts)
                    else:
                        yield from self._repeat(step, values, parts)

    def _compute(self, step: Compute, values: Values, parts: int) -> None:
        segment = self._segment(step, parts)
        if not self._is_default:
            self._put_all([v for v in arguments(step) if isinstance(values[v], np.ndarray)], values)
        args = [values[v] for v in arguments(step)]
        start = time.perf_counter()
        with self._choices():
            outs = segment(args, self._where)
        if self.exchange.spans is not None:
            jax.block_until_ready(outs)
            self.exchange.note("compute", segment.name, start)
            self.exchange.count_averages(self._average, start)
        for v in step.dead:
            del values[v]
        values |= zip(step.outs, outs, strict=True)

    def _compute_calling(self, step: Compute, values: Values, parts: int) -> None:
        """A segment that calls the host: its time is the host's and its own by turns."""
        segment = self._own.get(step, parts, lambda: self._new_segment(step, parts))
        note, noted = self.exchange.note, self.exchange.spans is not None
        self.hosts.note(noted)
        since = time.perf_counter()

        def program() -> Sequence[Any]:
            with self._choices(), calling(self.hosts):
                outs = segment([values[v] for v in arguments(step)], self._where)
            return jax.block_until_ready(outs)

        outs = self.hosts.run(program)
        if noted:
            for name, start, end in self.hosts.noted():
                note("compute", segment.name, since, start)
                note("host", name, start, end)
                since = end
            note("compute", segment.name, since)
        values |= zip(step.outs, outs, strict=True)

    def _call_host(self, step: Host, values: Values) -> Iterator[Wait | None]:
        if step.node not in self._calls:
            self._calls[step.node] = host_call(self.graph.nodes[step.node])
        call = self._calls[step.node]
        assert call is not None
        ins = [self._flat(v, values[v]) for v in step.ins]
        args, live = call.arguments(ins), self.hosts.get(call.of)
        start = time.perf_counter()
        live.start(args)
        yield None
        outs = call.results(ins, live.finish())
        if self.exchange.spans is not None:
            self.exchange.note("host", self.graph.nodes[step.node].title, start)
        for v in step.dead:
            del values[v]
        values |= {v: self._unflat(v, x) for v, x in zip(step.outs, outs, strict=True)}

    def _flat(self, value: ValueId, x: Any) -> Any:
        """A value of all replicas of one program, as a host function takes it: one batch."""
        return x.reshape(-1, *x.shape[2:]) if self._rows(value) else x

    def _unflat(self, value: ValueId, x: Any) -> Any:
        return x.reshape(self.spot.replicas, -1, *x.shape[1:]) if self._rows(value) else x

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

    def _repeat(self, loop: Repeat, values: Values, parts: int) -> Iterator[Wait | None]:
        fixed = {x.inside: values[x.outside] for x in loop.consts}
        carry = {c.inside: values[c.first] for c in loop.carry}
        rows: list[list[Any]] = [[] for _ in loop.ys]
        order = range(loop.length)
        for t in reversed(order) if loop.reverse else order:
            xs = {x.inside: self._row(x.outside, values, t) for x in loop.xs}
            inner = {**self.graph.constants, **fixed, **carry, **xs}
            yield from self._run(loop.code, inner, parts)
            carry = {c.inside: inner[c.next] for c in loop.carry}
            for made, y in zip(rows, loop.ys, strict=True):
                made.append(inner[y.row])
        values |= {c.after: carry[c.inside] for c in loop.carry}
        ordered = [made[::-1] if loop.reverse else made for made in rows]
        stacked = stack_rows(ordered, tuple(1 if self._rows(y.row) else 0 for y in loop.ys))
        values |= {y.after: x for y, x in zip(loop.ys, stacked, strict=True)}
        values |= {x.after: values[x.outside] for x in loop.kept}

    def _row(self, value: ValueId, values: Values, t: int) -> Any:
        return values[value][:, t] if self._rows(value) else values[value][t]

    def _segment(self, step: Compute, parts: int) -> Segment:
        return self._segments.get(step, parts, lambda: self._new_segment(step, parts))

    def _new_segment(self, step: Compute, parts: int) -> Segment:
        graph, options = self._graph_of(parts), compiler_options(self.mesh.devices.ravel().tolist())
        if not self.grouped:
            return Segment(graph, step, options)
        ins, outs = ([self._rows(v) for v in vs] for vs in (arguments(step), step.outs))
        mapped = partial(
            map_program, ins=ins, outs=outs, mesh=self.mesh, replicas=self.spot.replicas
        )
        return Segment(graph, step, options, mapped)

    def _graph_of(self, parts: int) -> Graph:
        """The step as this instance compiles it: for its environments, and for its devices."""
        choice = tuning_for(self.mesh.devices.ravel().tolist(), exact=self.graph.exact)
        return self.plan.graph.at(self.graph.num_envs // parts, choice)

    def _rows(self, value: ValueId) -> bool:
        """Whether a value is held stacked by replica here: all that is not uniform."""
        if not self.grouped or value in self.graph.constants:
            return False
        return self.plan.kinds[self.place][value].tag != "uniform"

    def _send(self, transfer: Transfer, values: Values) -> None:
        to = self.exchange.outgoing[transfer.id]
        whole = {v: self._whole(v, values[v]) for v in transfer.values}
        if not self.exchange.may_be_early(transfer):
            jax.block_until_ready(list(whole.values()))  # whoever receives it need not wait again
        parts = {v: split_axis(whole[v], axis, len(to.targets)) for v, axis in to.cut.items()}
        for k, (target, crossing) in enumerate(zip(to.targets, to.values, strict=True)):
            message = [parts[v][k] if v in parts else whole[v] for v in crossing]
            self.exchange.send(transfer, target, message)

    def _receive(self, transfer: Transfer, values: Values) -> None:
        of = self.exchange.incoming[transfer.id]
        sources = self.exchange.sources(transfer, of.sources)
        messages = [self.exchange.receive(transfer, source) for source in sources]
        if all(isinstance(message, Packed) for message in messages):
            outs = unpack(messages, of.joins, self.home(transfer.values[0]))
            values |= zip(transfer.values, outs, strict=True)
            return
        arrays = [list(message) for message in messages]
        parts = [[arrays[m][k] for m, k in joined.parts] for joined in of.joins]
        whole = self._joined(transfer, parts, [joined.join for joined in of.joins])
        self._put_all([v for v, x in whole.items() if not self._is_here(x, transfer)], whole)
        values |= whole

    def _is_here(self, x: Any, transfer: Transfer) -> bool:
        """Whether an array can be used as it is: on this instance's only device, or for one step.

        In a loop it is read about once, and a program that is given the host's memory copies it by
        itself, sooner than JAX puts it on a device.
        """
        if self.mesh.size > 1:
            return False
        if isinstance(x, jax.Array):
            return x.devices() == set(self.mesh.devices.flat)
        return bool(transfer.loops) and self._is_default

    def _joined(
        self, transfer: Transfer, parts: Sequence[Sequence[Any]], joins: Sequence[Join]
    ) -> Values:
        """Received values as this place holds them, from the parts that their sources sent."""
        found = join_values(parts, joins, self.mesh.devices.flat[0])
        whole = dict(zip(transfer.values, found, strict=True))
        for v in whole if self.grouped else ():
            if (axis := self.plan.axes.axis(v)) is not None:
                whole[v] = split_axis(whole[v], axis, self.spot.replicas)
        return whole

    def _whole(self, value: ValueId, x: Any) -> Any:
        axis = self.plan.axes.axis(value)
        return merge_axis(x, axis) if self._rows(value) and axis is not None else x

    def _put_all(self, chosen: Sequence[ValueId], values: Values) -> None:
        """Put some of the values on this instance's devices."""
        if chosen:  # a call takes 100 us even where there is nothing to do
            put = jax.device_put([values[v] for v in chosen], [self.home(v) for v in chosen])
            values |= zip(chosen, put, strict=True)

    def home(self, value: ValueId) -> NamedSharding:
        """How this instance holds a value on its devices."""
        return home(self.mesh, self.plan.axes.axis(value), stacked=self.grouped)
