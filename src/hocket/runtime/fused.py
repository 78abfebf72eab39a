"""A plan of one place: one XLA program runs a block of iterations."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from hocket.cluster.devices import find_devices
from hocket.core.graph.trace import first_state
from hocket.core.plan.data import Plan
from hocket.core.program.backend import backend
from hocket.core.program.fragment import exact_fragments
from hocket.core.program.host import calling
from hocket.core.program.tuning import Tuning, tuned
from hocket.errors import PlanError
from hocket.report.outcome import Activity
from hocket.runtime.averaging.table import WayTable
from hocket.runtime.compile.tuning import compiler_options, tuning_for
from hocket.runtime.executor import Timings, by_seed
from hocket.runtime.host_calls.calls import HostFunctions, is_one_cpu
from hocket.runtime.host_calls.services import Services
from hocket.runtime.instance.replicas import home, map_replicas, replica_mesh, stack, unstack
from hocket.runtime.observe.profile import profiled
from hocket.runtime.observe.timeline import Span, Timeline

METRIC_BYTES = 8 * 2**20
"""The most bytes of metrics that a block may keep on the device until it ends."""
# All metrics are copied to the host after every block. With 64 MiB the copies took up to 11 % of
# PPO's time with 16,384 environments on an H200.


def block_program(
    step: Callable[[Any], tuple[Any, dict[str, Any]]], metrics: Any, size: int
) -> Callable[[Any, Any], tuple[Any, Any]]:
    """Return `(state, n) -> (state, metrics)`, a program of n iterations, where n <= size.

    n is an argument, so that one compilation serves every block, including a shorter last one.
    """

    def block(state: Any, n: Any) -> tuple[Any, Any]:
        def iteration(i: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
            state, rows = step(carry[0])
            write = functools.partial(lax.dynamic_update_index_in_dim, index=i, axis=0)
            return state, jax.tree.map(write, carry[1], rows)

        empty = jax.tree.map(lambda m: jnp.zeros((size, *m.shape), m.dtype), metrics)
        return lax.fori_loop(0, n, iteration, (state, empty))

    return block


class Fused:
    """The executor of one place. If the place has several devices, they share the environments.

    With `seeds`, it trains that many agents at once. State and metrics then have a leading axis of
    seeds, and the devices share the seeds instead, so that nothing crosses between devices.
    """

    def __init__(
        self,
        plan: Plan,
        max_block: int = 1024,
        seeds: int | None = None,
        *,
        record: bool = False,
    ) -> None:
        (place,) = plan.places
        self.plan, self.graph, self.seeds = plan, plan.graph, seeds
        self.timings = Timings()
        self._replicas = place.replicas
        self._devices = find_devices(place.on)
        if seeds is not None:
            # Each device must have equally many seeds, so some devices may stay idle.
            counts = range(1, len(self._devices) + 1)
            self._devices = self._devices[: max(n for n in counts if seeds % n == 0)]
        self._check_devices()
        self._mesh = replica_mesh(self._devices, self._replicas)
        self._metrics = by_seed(self.graph.metrics, seeds)
        row = sum(math.prod(m.shape) * m.dtype.itemsize for m in jax.tree.leaves(self._metrics))
        self.max_block = max(1, min(max_block, METRIC_BYTES // max(row, 1)))
        self._hosts = HostFunctions(inside=is_one_cpu(self._devices))
        self._services = Services(plan)
        self._hosts.find = self._services.at(0)
        self._state: Any = None
        self._compiled: Any = None
        self._iteration = 0
        self._spans: list[Span] | None = [] if record else None

    def start(self, key: jax.Array) -> None:
        start = time.perf_counter()
        self.load(first_state(self.graph, key))
        self.timings.compile += time.perf_counter() - start

    def profile(self, limit: int) -> tuple[int, dict[str, Any], dict[str, float]]:
        self.compile()
        start, ran = time.perf_counter(), self.timings.run
        (count, metrics), shares = profiled(lambda: self.run(1), self._compiled.as_text())
        # `run` has already counted the iteration's time as running, so it is subtracted here.
        self.timings.profile += time.perf_counter() - start - (self.timings.run - ran)
        return count, metrics, shares

    def load(self, state: Any, late: Mapping[str, Any] | None = None) -> None:
        self._hosts.load(late or {})
        state = self._services.load(state)
        if self._replicas > 1:
            state = stack(self.plan, self.plan.places[0].name, state)
        # Copied because the block donates its state, and the caller may want to keep this one.
        self._state = jax.device_put(jax.tree.map(jnp.copy, state), self._shardings())

    def state(self) -> Any:
        state = jax.tree.map(jnp.copy, self._state)
        state = unstack(self.plan, state) if self._replicas > 1 else state
        return self._services.whole(state)

    def compile(self) -> None:
        """Compile the block ahead of time, and record how long that took."""
        if self._compiled is not None:
            return
        start = time.perf_counter()
        lowered = self.lower()
        traced = time.perf_counter()
        self._compiled = lowered.compile(compiler_options(self._devices))
        self.timings.trace += traced - start
        self.timings.compile += time.perf_counter() - traced

    def lower(self) -> Any:
        """Trace the block for its devices, without compiling it."""
        choice = tuning_for(self._devices, exact=self.graph.exact)
        block = block_program(self._step(choice), self._metrics, self.max_block)
        shardings = self._shardings()
        chosen = backend(self.plan.places[0].backend)
        called = calling(self._hosts)
        with exact_fragments(self.graph.exact), tuned(choice), chosen, called:
            return jax.jit(
                block,
                donate_argnums=0,
                in_shardings=(shardings, None),
                out_shardings=(shardings, None),
            ).lower(self._specs(), jax.ShapeDtypeStruct((), jnp.int32))

    def run(self, iterations: int) -> tuple[int, dict[str, Any]]:
        self.compile()
        count = min(iterations, self.max_block)
        start = time.perf_counter()
        try:
            self._state, metrics = self._compiled(self._state, np.int32(count))
            metrics = jax.device_get(metrics)  # waits for the block
        except Exception as error:  # noqa: BLE001 (JAX's, of several kinds)
            # Raise the exception of a host function itself, since XLA passes on only its text.
            raise self._hosts.failure or error from None
        end = time.perf_counter()
        self.timings.run += end - start
        if self._spans is not None:
            name = f"{count} iteration{'s' * (count != 1)} of the whole step"
            instance = f"{self.plan.places[0].name}/0"
            self._spans.append(Span(instance, "compute", name, start, end, 0, self._iteration))
        self._iteration += count
        return count, {name: rows[:count] for name, rows in metrics.items()}

    def late(self) -> dict[str, Any]:
        return {name: jnp.asarray(x) for name, x in self._hosts.late().items()}

    def late_specs(self) -> dict[str, Any]:
        return {}

    def activity(self) -> list[Activity]:
        return []

    def reductions(self) -> dict[str, WayTable]:
        return {}

    def timeline(self) -> Timeline | None:
        return None if self._spans is None else Timeline(tuple(self._spans))

    def close(self) -> None:
        self._hosts.end()
        self._services.close(keep=True)

    def _step(self, choice: Tuning) -> Callable[[Any], tuple[Any, dict[str, Any]]]:
        if self._replicas > 1:
            return map_replicas(self.plan, self._mesh)
        step = self.graph.at(self.graph.num_envs, choice).step
        if self.seeds is None:
            return step
        agents = jax.vmap(step)
        if len(self._devices) == 1:
            return agents
        spread = PartitionSpec("devices")
        return jax.shard_map(
            agents, mesh=self._mesh, in_specs=spread, out_specs=spread, check_vma=False
        )

    def _specs(self) -> Any:
        state = by_seed(self.graph.state, self.seeds)
        if self._replicas > 1:
            return jax.eval_shape(lambda s: stack(self.plan, self.plan.places[0].name, s), state)
        return state

    def _shardings(self) -> Any:
        """Return how each leaf lies on the devices: split by environments or seeds, or copied."""
        spread = len(self._devices) > 1
        if self.seeds is not None:
            spec = PartitionSpec("devices") if spread else PartitionSpec()
            return jax.tree.map(lambda _: NamedSharding(self._mesh, spec), self.graph.state)
        stacked, shared = self._replicas > 1, self._mesh.size > 1
        # The axes are found only for several devices, since finding them takes another trace.
        axis = self.plan.axes.axis if shared else lambda _: None
        leaves = [home(self._mesh, axis(v), stacked=stacked) for v in self.graph.block.inputs]
        return jax.tree.unflatten(jax.tree.structure(self.graph.state), leaves)

    def _check_devices(self) -> None:
        num_envs, devices = self.graph.num_envs, len(self._devices)
        if self.seeds is not None and self._replicas > 1:
            raise PlanError(
                f"{self.seeds} seeds at once need a place with one replica, and "
                f"`{self.plan.places[0].name}` has {self._replicas}: use another plan, such as "
                f"`anakin`."
            )
        if self.seeds is None and self._replicas == 1 and num_envs % devices:
            raise PlanError(
                f"{num_envs} environments cannot be shared equally by {devices} devices: choose a "
                f"number of environments that is a multiple of {devices}."
            )
