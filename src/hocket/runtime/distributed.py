"""A plan of several instances: command its crew, and join the instances' states and metrics."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hocket.core.graph.trace import Graph, ValueId, first_state, init_state
from hocket.core.plan.data import Plan
from hocket.report.outcome import Activity
from hocket.runtime.averaging.table import WayTable
from hocket.runtime.channels.host_arrays import is_key
from hocket.runtime.channels.late import late_specs
from hocket.runtime.executor import Timings
from hocket.runtime.host_calls.services import Services
from hocket.runtime.instance.instance import AGES
from hocket.runtime.launch.crew import Crew
from hocket.runtime.launch.nodes import LEASE_SECONDS
from hocket.runtime.observe.status import activities, names
from hocket.runtime.observe.timeline import Timeline

SAMPLE_AGE = "sample_age"
"""The metric that holds each sample's age when the learner uses it, in a plan with lag=free. The
age counts the versions by which the learner's parameters are newer than the sample's."""


class Split:
    """The executor of a plan with several instances.

    Without late channels, it computes the same numbers as `Fused`, which runs a single program.
    """

    max_block = 64

    def __init__(
        self, plan: Plan, *, record: bool = False, crew: Crew | None = None,
        lease: float = LEASE_SECONDS,
    ) -> None:  # fmt: skip
        """Create an executor of `plan`, with a new crew unless `crew` is given.

        To train several agents at once, pass a `crew`. Its plan has a graph that steps all agents,
        while the graph of `plan` steps a single agent.
        """
        self.plan = plan
        self.timings = Timings()
        self.crew = crew or Crew(plan, lease=lease)
        self._plan, self._graph = self.crew.plan, self.crew.plan.graph
        self._services = Services(self._plan)
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
        leaves = dict(zip(self._graph.block.inputs, jax.tree.leaves(inner), strict=True))
        self.crew.load(_resized(leaves, self._sizes, 0), late or {}, self._services)
        self.timings.compile += time.perf_counter() - begin

    def late(self) -> dict[str, Any]:
        if self._closed:
            return self._last_late
        return {name: jnp.asarray(x) for name, x in self.crew.late().items()}

    def late_specs(self) -> dict[str, Any]:
        return late_specs(self._plan)

    def state(self) -> Any:
        if self._closed:
            if self._last_state is None:
                raise RuntimeError(
                    "the run failed, and its last state is lost: continue from a checkpoint."
                )
            return self._last_state
        home, places = self._plan.projection.placement.home, [p for p, _ in names(self._plan)]
        parts = list(zip(self.crew.held(), places, strict=True))
        leaves = {
            v: self._join(v, [held[v] for held, place in parts if place == home[v]])
            for v in self._graph.block.inputs
        }
        whole = _resized(leaves, self._sizes, 1)
        inner = jax.tree.unflatten(jax.tree.structure(self._graph.state), list(whole.values()))
        return self._services.whole(inner)

    @functools.cached_property
    def _sizes(self) -> dict[ValueId, tuple[Any, Any]]:
        """The learner's scalars whose first values depend on the number of environments.

        Each has two such values. One is for all environments, and is the one in a saved state, so
        that any plan can resume it. The other is for the share of the environments that an
        iteration learns from if lag=free.
        """
        free = self._plan.free
        if free is None or free.shares == 1:
            return {}
        home, inputs = self._plan.projection.placement.home, self._graph.block.inputs
        ours = [
            k for k, v in enumerate(inputs)
            if home[v] == free.learner and not self._graph.values[v].shape
        ]  # fmt: skip
        whole, share = (_scalars(g, ours) for g in (self._graph, self._plan.iteration))
        pairs = zip(ours, whole, share, strict=True)
        return {inputs[k]: (a, b) for k, a, b in pairs if not np.array_equal(a, b)}

    def run(self, iterations: int) -> tuple[int, dict[str, Any]]:
        # The first block compiles, so it has one iteration, and its time counts as compiling.
        count = min(iterations, self.max_block) if self._blocks else 1
        start = time.perf_counter()
        rows = self.crew.run(count)
        self._count_time(time.perf_counter() - start, count)
        self._before, self._now = self._now, self.crew.statuses.copy()
        columns = [
            np.asarray(self._join(v, [made[v] for made in rows if v in made], stacked=True))
            for v in self._graph.block.outputs[self._graph.num_leaves :]
        ]
        metrics = jax.tree.unflatten(jax.tree.structure(self._graph.metrics), columns)
        for made in rows:
            if AGES in made:
                metrics[SAMPLE_AGE] = made[AGES]
        return count, metrics

    def _count_time(self, seconds: float, count: int) -> None:
        """Count a block's seconds as running, except that the first block counts as compiling."""
        self._blocks += 1
        if self._blocks == 1:
            self.timings.compile += seconds
            if self._record:  # not earlier, since compiling would dwarf all other spans
                self.crew.ask("record")
            return
        self.timings.run += seconds
        if self._blocks == 2:
            # The first block's iteration is assumed to have run as long as one of this block's.
            self.timings.compile -= seconds / count
            self.timings.run += seconds / count

    def profile(self, limit: int) -> tuple[int, dict[str, Any], dict[str, float]]:
        """Advance, and also return the share of the time that instances wait for each other.

        `activity` tells which places they wait for.
        """
        count, metrics = self.run(limit)
        places = self.activity()
        waiting = sum(sum(p.waits.values()) for p in places) / len(places)
        return count, metrics, {"wait": min(1.0, waiting)}

    def activity(self) -> list[Activity]:
        """Return how busy each place was in the last block, and which places it waited for."""
        return activities(self._plan, self._before, self._now)

    def timeline(self) -> Timeline | None:
        """Return the spans of all instances, or None if they were not recorded."""
        if not self._record or self._closed:
            return self._last_timeline
        # After a failure the instances are gone, and their spans with them.
        answers = self.crew.ask("spans") if self.crew.is_well else []
        spans = tuple(span for spans, _ in answers for span in spans)
        return Timeline(spans, sum(left_out for _, left_out in answers))

    def nbytes(self) -> dict[tuple[str, str], int]:
        """Return the number of bytes sent so far from each place to each other place."""
        crossed, nbytes = self.crew.statuses["crossed"].sum(0), Counter[tuple[str, str]]()
        for t in self._plan.projection.transfers:
            nbytes[t.source, t.target] += int(crossed[t.id])
        return nbytes

    def reductions(self) -> dict[str, WayTable]:
        return self.crew.reductions

    def close(self) -> None:
        """End the instances. The last state can still be asked for."""
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

    def _join(self, value: ValueId, parts: Sequence[Any], *, stacked: bool = False) -> Any:
        axis = self._plan.axes.axis(value)
        if len(parts) == 1 or axis is None:
            return parts[0]
        if stacked:
            return np.concatenate(parts, axis + 1)
        first = next(iter(parts[0].devices()))
        return jnp.concatenate([jax.device_put(x, first) for x in parts], axis)


def _scalars(graph: Graph, numbers: Sequence[int]) -> list[Any]:
    """Compute a first state, but return only its leaves at the positions `numbers`."""

    def chosen(key: jax.Array) -> list[Any]:
        leaves = jax.tree.leaves(init_state(graph.algorithm, key, graph.num_envs, graph.served))
        return [jax.random.key_data(x) if is_key(x) else x for x in (leaves[k] for k in numbers)]

    return jax.device_get(jax.jit(chosen)(jax.random.key(0)))


def _resized(
    leaves: Mapping[ValueId, Any], sizes: Mapping[ValueId, tuple[Any, Any]], side: int
) -> dict[ValueId, Any]:
    """Return the leaves, with each scalar of `sizes` changed to the other of its two values.

    A leaf `v` that equals `sizes[v][side]` becomes `sizes[v][1 - side]`. A scalar that training has
    changed since `init` does not equal it, and stays as it is.
    """
    return {
        v: jnp.asarray(sizes[v][1 - side])
        if v in sizes and np.array_equal(x, sizes[v][side])
        else x
        for v, x in leaves.items()
    }
