"""A plan of several instances, carried out by a crew: commanded, and its state put together."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hocket.core.graph.trace import Graph, first_state, init_state
from hocket.core.plan.data import Plan
from hocket.report.outcome import Activity
from hocket.runtime.averaging.table import Table
from hocket.runtime.channels.host_arrays import is_key
from hocket.runtime.channels.links import late_specs
from hocket.runtime.executor import Timings
from hocket.runtime.host_calls.services import Services
from hocket.runtime.instance.exchange import AGES
from hocket.runtime.launch.crew import Crew
from hocket.runtime.observe.status import activities, names
from hocket.runtime.observe.timeline import Timeline

SAMPLE_AGE = "sample_age"
"""The metric of free channels: by how many iterations what is learned from is behind."""


class Split:
    """Runs the instances of a plan. Where every channel waits: the fused program's numbers."""

    max_block = 64

    def __init__(self, plan: Plan, *, record: bool = False, crew: Crew | None = None) -> None:
        self.plan = plan
        self.timings = Timings()
        self.crew = crew or Crew(plan)
        self._services = Services(plan)
        self._record = record
        self._before = self._now = self.crew.statuses.copy()
        self._blocks = 0
        self._closed = False
        self._last_state: Any = None
        self._last_late: dict[str, Any] = {}
        self._last_timeline: Timeline | None = None

    def start(self, key: jax.Array) -> None:
        begin = time.perf_counter()
        state = jax.block_until_ready(first_state(self.plan.graph, key))
        self.timings.compile += time.perf_counter() - begin
        self.load(state)

    def load(self, state: Any, late: Mapping[str, Any] | None = None) -> None:
        begin = time.perf_counter()
        self.crew.pause()
        inner = self._services.load(state)
        leaves = dict(zip(self.plan.graph.block.inputs, jax.tree.leaves(inner), strict=True))
        self.crew.load(_resized(leaves, self._sizes, 0), late or {}, self._services)
        self.timings.compile += time.perf_counter() - begin

    def late(self) -> dict[str, Any]:
        if self._closed:
            return self._last_late
        return {name: jnp.asarray(x) for name, x in self.crew.late().items()}

    def late_specs(self) -> dict[str, Any]:
        return late_specs(self.plan)

    def state(self) -> Any:
        if self._closed:
            if self._last_state is None:
                raise RuntimeError("the run failed, and its last state is gone with it.")
            return self._last_state
        graph, home = self.plan.graph, self.plan.projection.placement.home
        held, order = self.crew.held(), names(self.plan)
        leaves = {
            v: self._join(v, [h[v] for h, (p, _) in zip(held, order, strict=True) if p == home[v]])
            for v in graph.block.inputs
        }
        whole = _resized(leaves, self._sizes, 1)
        inner = jax.tree.unflatten(jax.tree.structure(graph.state), list(whole.values()))
        return self._services.whole(inner)

    @functools.cached_property
    def _sizes(self) -> dict[int, tuple[Any, Any]]:
        """Numbers of the state that depend on the environments of an iteration, such as a pace.

        As `init` makes them for all environments, and for those of one iteration, where these are
        fewer: a state is kept as for all, so that any plan can go on from it.
        """
        free = self.plan.free
        if free is None or free.shares == 1:
            return {}
        home, inputs = self.plan.projection.placement.home, self.plan.graph.block.inputs
        ours = [
            k for k, v in enumerate(inputs)
            if home[v] == free.learner and not self.plan.graph.values[v].shape
        ]  # fmt: skip
        whole, share = (_scalars(g, ours) for g in (self.plan.graph, self.plan.iteration))
        pairs = zip(ours, whole, share, strict=True)
        return {inputs[k]: (a, b) for k, a, b in pairs if not np.array_equal(a, b)}

    def run(self, iterations: int) -> tuple[int, dict[str, Any]]:
        count = min(iterations, self.max_block) if self._blocks else 1
        start = time.perf_counter()
        rows = self.crew.run(count)
        self._count_time(time.perf_counter() - start, count)
        self._before, self._now = self._now, self.crew.statuses.copy()
        metrics = [
            np.asarray(self._join(v, [made[v] for made in rows if v in made], stacked=True))
            for v in self.plan.graph.block.outputs[self.plan.graph.num_leaves :]
        ]
        found = jax.tree.unflatten(jax.tree.structure(self.plan.graph.metrics), metrics)
        for made in rows:
            if AGES in made:
                found[SAMPLE_AGE] = made[AGES]
        return count, found

    def _count_time(self, seconds: float, count: int) -> None:
        """The first iteration compiles; what it took besides is what the next ones take."""
        self._blocks += 1
        if self._blocks == 1:
            self.timings.compile += seconds
            if self._record:  # from here on: what compiles would hide the rest
                self.crew.record()
            return
        self.timings.run += seconds
        if self._blocks == 2:
            self.timings.compile -= seconds / count
            self.timings.run += seconds / count

    def profile(self, limit: int) -> tuple[int, dict[str, Any], dict[str, float]]:
        """Only how long the instances wait for each other: `activity` says more."""
        count, metrics = self.run(limit)
        places = self.activity()
        waiting = sum(sum(p.waits.values()) for p in places) / len(places)
        return count, metrics, {"wait": min(1.0, waiting)}

    def activity(self) -> list[Activity]:
        """How busy each place was in the last block, and for whom it waited."""
        return activities(self.plan, self._before, self._now)

    def timeline(self) -> Timeline | None:
        """What every instance did when, if that was recorded."""
        if not self._record or self._closed:
            return self._last_timeline
        spans, left_out = self.crew.spans()
        return Timeline(tuple(spans), left_out)

    def nbytes(self) -> dict[tuple[str, str], int]:
        """The bytes that crossed so far, from place to place."""
        crossed = self.crew.statuses["crossed"].sum(0)
        counted: dict[tuple[str, str], int] = {}
        for t in self.plan.projection.transfers:
            pair = t.source, t.target
            counted[pair] = counted.get(pair, 0) + int(crossed[t.id])
        return counted

    def reductions(self) -> dict[str, Table]:
        return self.crew.reductions

    def close(self) -> None:
        """End the instances; the last state can still be asked for."""
        try:
            if not self._closed:
                self._last_timeline = self.timeline()
            if not self._closed and self.crew.is_well:
                self._last_state, self._last_late = self.state(), self.late()
        finally:
            self._closed = True
            try:
                self.crew.close()
            finally:
                self._services.close()

    def _join(self, value: int, parts: Sequence[Any], *, stacked: bool = False) -> Any:
        axis = self.plan.axes.axis(value)
        if len(parts) == 1 or axis is None:
            return parts[0]
        if stacked:
            return np.concatenate(parts, axis + 1)
        first = next(iter(parts[0].devices()))
        return jnp.concatenate([jax.device_put(x, first) for x in parts], axis)


def _scalars(graph: Graph, which: Sequence[int]) -> list[Any]:
    """Some numbers of a first state; nothing else of it is computed."""

    def chosen(key: jax.Array) -> list[Any]:
        leaves = jax.tree.leaves(init_state(graph.algorithm, key, graph.num_envs, graph.served))
        return [jax.random.key_data(x) if is_key(x) else x for x in (leaves[k] for k in which)]

    return jax.device_get(jax.jit(chosen)(jax.random.key(0)))


def _resized(
    leaves: Mapping[int, Any], sizes: Mapping[int, tuple[Any, Any]], side: int
) -> dict[int, Any]:
    """The leaves, with numbers that are as `init` made them for one size as for the other one."""
    return {
        v: jnp.asarray(sizes[v][1 - side])
        if v in sizes and np.array_equal(x, sizes[v][side])
        else x
        for v, x in leaves.items()
    }
