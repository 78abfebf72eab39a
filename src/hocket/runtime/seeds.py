"""Several agents at once on slices, each slice with some of them: nothing crosses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax

from hocket.core.graph.trace import first_state, trace
from hocket.core.plan.data import Plan
from hocket.core.program.algorithm import Algorithm, Policy
from hocket.core.program.averaged import undivided
from hocket.errors import PlanError
from hocket.report.outcome import Activity
from hocket.runtime.averaging.table import WayTable
from hocket.runtime.distributed import Split
from hocket.runtime.observe.timeline import Timeline


@dataclass(frozen=True)
class Population:
    """An algorithm whose environments are agents, each with environments of its own.

    So a plan's replicas share the agents, as they would share environments.
    """

    algorithm: Algorithm
    num_envs: int
    """Of each agent."""

    @property
    def env_steps(self) -> int:
        return self.algorithm.env_steps

    def init(self, key: jax.Array, num_agents: int) -> Any:
        keys = jax.random.split(key, num_agents)
        return jax.lax.map(lambda key: self.algorithm.init(key, self.num_envs), keys)

    def step(self, state: Any) -> tuple[Any, dict[str, Any]]:
        with undivided():
            return jax.vmap(lambda agent: self.algorithm.step(agent))(state)

    def policy(self, state: Any, explore: bool = False) -> Policy:
        raise NotImplementedError("of several agents, ask one for its policy")


class Agents:
    """Trains `seeds` agents on the slices of a plan of one place; the numbers of each alone."""

    def __init__(self, plan: Plan, seeds: int, *, record: bool = False) -> None:
        (place,) = plan.places
        if seeds % place.replicas:
            raise PlanError(
                f"{seeds} seeds cannot be shared equally by {place.replicas} slices: choose a "
                f"multiple of {place.replicas}, or other slices."
            )
        self.plan, self.seeds = plan, seeds
        population = Population(plan.graph.algorithm, plan.graph.num_envs)
        graph = trace(population, seeds, exact=plan.graph.exact)
        self._split = Split(replace(plan, graph=graph, channels={}), record=record)
        self.crew, self.timings = self._split.crew, self._split.timings

    def start(self, key: jax.Array) -> None:
        self.load(first_state(self.plan.graph, key))

    def load(self, state: Any, late: Mapping[str, Any] | None = None) -> None:
        self._split.load(state, late)

    def late(self) -> dict[str, Any]:
        return self._split.late()

    def late_specs(self) -> dict[str, Any]:
        return self._split.late_specs()

    def state(self) -> Any:
        return self._split.state()

    def run(self, iterations: int) -> tuple[int, dict[str, Any]]:
        return self._split.run(iterations)

    def profile(self, limit: int) -> tuple[int, dict[str, Any], dict[str, float]]:
        return self._split.profile(limit)

    def reductions(self) -> Mapping[str, WayTable]:
        return self._split.reductions()

    def activity(self) -> list[Activity]:
        return self._split.activity()

    def timeline(self) -> Timeline | None:
        return self._split.timeline()

    def close(self) -> None:
        self._split.close()
