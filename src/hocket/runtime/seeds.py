"""Train several agents at once, some on each slice of a device. Slices exchange no data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax

from hocket.core.graph.trace import trace
from hocket.core.plan.data import Plan
from hocket.core.program.algorithm import Algorithm, Policy
from hocket.core.program.averaged import undivided
from hocket.errors import PlanError
from hocket.runtime.distributed import Split
from hocket.runtime.launch.crew import Crew
from hocket.runtime.launch.nodes import LEASE_SECONDS


@dataclass(frozen=True)
class Population:
    """Several agents as one algorithm, whose number of environments is the number of agents.

    So the replicas of a plan divide the agents among them, as they would divide environments. Each
    agent has environments of its own.
    """

    algorithm: Algorithm
    num_envs: int
    """The number of environments of each agent."""

    @property
    def env_steps(self) -> int:
        return self.algorithm.env_steps

    def init(self, key: jax.Array, num_agents: int) -> Any:
        keys = jax.random.split(key, num_agents)
        return jax.lax.map(lambda key: self.algorithm.init(key, self.num_envs), keys)

    def step(self, state: Any) -> tuple[Any, dict[str, Any]]:
        # No agent is spread over slices, so `averaged` in its step has only to return its argument.
        with undivided():
            return jax.vmap(lambda agent: self.algorithm.step(agent))(state)

    def policy(self, state: Any, explore: bool = False) -> Policy:
        raise NotImplementedError(
            "every agent has its own policy: call `algorithm.policy` with the state of one agent"
        )


def agents(plan: Plan, seeds: int, *, record: bool = False, lease: float = LEASE_SECONDS) -> Split:
    """Return the executor that trains `seeds` agents on the slices of a plan with one place.

    Each agent gets the same numbers as if it were trained alone.
    """
    (place,) = plan.places
    if seeds % place.replicas:
        raise PlanError(
            f"{seeds} seeds cannot be shared equally by {place.replicas} slices: choose a "
            f"number of seeds that is a multiple of {place.replicas}, or another number of slices."
        )
    population = Population(plan.graph.algorithm, plan.graph.num_envs)
    graph = trace(population, seeds, exact=plan.graph.exact)
    return Split(
        plan, record=record, crew=Crew(replace(plan, graph=graph, channels={}), lease=lease)
    )
