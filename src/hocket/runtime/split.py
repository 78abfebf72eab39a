"""A plan of several places, carried out in this process: one thread for each instance."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hocket.core.graph import first_state
from hocket.core.plan import Channel, Plan
from hocket.errors import PlanError
from hocket.runtime.channel import Closed, Pipe
from hocket.runtime.executor import Timings
from hocket.runtime.instance import Instance, Route


class InstanceError(RuntimeError):
    """An instance failed; the message begins with its name and its traceback."""


class Split:
    """Runs the instances of a plan as threads. Every channel waits: the fused program's numbers."""

    max_block = 64

    def __init__(self, plan: Plan) -> None:
        late = [name for name, channel in plan.channels.items() if channel.lag]
        if late:
            raise PlanError(
                f"the channel `{late[0]}` has lag {plan.channels[late[0]].lag}; only synchronous "
                f"channels (lag=0) can be run so far."
            )
        self.plan = plan
        self.timings = Timings()
        self._failure: InstanceError | None = None
        self.pipes = self._pipes()
        self.instances = [
            Instance(plan, place.name, i, self.pipes)
            for place in plan.places
            for i in range(plan.instances(place.name))
        ]

    def start(self, key: jax.Array) -> None:
        self.load(first_state(self.plan.graph, key))

    def load(self, state: Any) -> None:
        for instance in self.instances:
            instance.load(jax.tree.leaves(state))

    def state(self) -> Any:
        graph, home = self.plan.graph, self.plan.projection.placement.home
        leaves = [
            self._join(v, [i.held(v) for i in self.instances if i.place == home[v]])
            for v in graph.block.inputs
        ]
        return jax.tree.unflatten(jax.tree.structure(graph.state), leaves)

    def run(self, iterations: int) -> tuple[int, dict[str, Any]]:
        first = not self.timings.compile
        count = 1 if first else min(iterations, self.max_block)
        start = time.perf_counter()
        rows = self._in_threads(count)
        if first:
            self.timings.compile = time.perf_counter() - start
            start = time.perf_counter()
        metrics = [
            np.stack([np.asarray(self._join(v, parts)) for parts in zip(*rows[v], strict=True)])
            for v in self.plan.graph.block.outputs[self.plan.graph.num_leaves :]
        ]
        self.timings.run += time.perf_counter() - start
        return count, jax.tree.unflatten(jax.tree.structure(self.plan.graph.metrics), metrics)

    def profile(self, limit: int) -> tuple[int, dict[str, Any], dict[str, float]]:
        """Only how long the instances wait for each other: each place may run several roles."""
        waited, start = self._waited(), time.perf_counter()
        count, metrics = self.run(limit)
        seconds = (time.perf_counter() - start) * len(self.instances)
        return count, metrics, {"wait": min(1.0, (self._waited() - waited) / seconds)}

    def _waited(self) -> float:
        return sum(pipe.waited for pipe in self.pipes.values())

    def nbytes(self) -> dict[tuple[str, str], int]:
        """The bytes that crossed so far, from place to place."""
        counted: dict[tuple[str, str], int] = {}
        for t in self.plan.projection.transfers:
            mine = [p.nbytes for (number, _, _), p in self.pipes.items() if number == t.id]
            counted[t.source, t.target] = counted.get((t.source, t.target), 0) + sum(mine)
        return counted

    def _pipes(self) -> dict[tuple[int, int, int], Pipe]:
        plan, pipes = self.plan, {}
        for t in plan.projection.transfers:
            capacity = plan.channels.get(f"{t.source} -> {t.target}", Channel()).capacity
            for a, b in Route(plan.instances(t.source), plan.instances(t.target)).pairs():
                pipes[t.id, a, b] = Pipe(capacity)
        return pipes

    def _in_threads(self, count: int) -> dict[int, list[list[Any]]]:
        """Run `count` iterations; for each metric, a list by instance of a list by iteration."""
        rows: dict[str, list[list[Any]]] = {}
        failures: list[tuple[Instance, str]] = []

        def work(instance: Instance) -> None:
            try:
                rows[instance.name] = [instance.iterate() for _ in range(count)]
            except Closed:
                pass
            except BaseException:  # noqa: BLE001 (reported below, with the instance's name)
                failures.append((instance, traceback.format_exc()))
                for pipe in self.pipes.values():
                    pipe.close()

        threads = [
            threading.Thread(target=work, args=(i,), name=i.name, daemon=True)
            for i in self.instances
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            instance, text = failures[0]
            self._failure = InstanceError(f"the instance `{instance.name}` failed:\n{text}")
        if self._failure:
            raise self._failure
        return {
            v: [
                [row[i.reports.index(v)] for row in rows[i.name]]
                for i in self.instances
                if v in i.reports
            ]
            for v in self.plan.graph.block.outputs[self.plan.graph.num_leaves :]
        }

    def _join(self, value: int, parts: Sequence[Any]) -> Any:
        axis = self.plan.axes.axis(value)
        if len(parts) == 1 or axis is None:
            return parts[0]
        first = next(iter(parts[0].devices()))
        return jnp.concatenate([jax.device_put(x, first) for x in parts], axis)
