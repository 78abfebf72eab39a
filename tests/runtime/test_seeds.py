"""Several agents as one algorithm: each is what it would be alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hocket import Place, Plan, PlanError, Policy, averaged, fragment, trace
from hocket.core.program.fragment import ROLES
from hocket.runtime.seeds import Population, agents
from tests.toys import Toy


@dataclass(frozen=True)
class Counter:
    """An algorithm that compiles at once."""

    env_steps: int = 700
    num_envs: int = 4

    def init(self, key: Any, num_envs: int) -> Any:
        return {"x": jnp.arange(num_envs) + jax.random.key_data(key)[1], "mean": jnp.float32(0)}

    @fragment(role="learn")
    def update(self, x: Any) -> Any:
        return averaged(x.astype(jnp.float32).mean())

    def step(self, state: Any) -> tuple[Any, dict[str, Any]]:
        mean = self.update(state["x"])
        return {"x": state["x"] + 1, "mean": mean}, {"mean": mean}

    def policy(self, state: Any, explore: bool = False) -> Policy:
        return Policy(lambda obs, memory, key: (obs, memory))


def test_each_agent_begins_as_it_would_alone() -> None:
    population = Population(Counter(), num_envs=4)
    state = population.init(jax.random.key(3), 2)
    for k, key in enumerate(jax.random.split(jax.random.key(3), 2)):
        alone = Counter().init(key, 4)
        jax.tree.map(lambda x, y, k=k: np.testing.assert_array_equal(x[k], y), state, alone)
    assert state["x"].shape == (2, 4) and population.env_steps == 700


def test_an_agent_averages_over_its_own_environments() -> None:
    """Agents lie along the axis that is shared out, and nothing crosses between them."""
    population = Population(Counter(), num_envs=4)
    state = {"x": jnp.stack([jnp.arange(4), 10 + jnp.arange(4)]), "mean": jnp.zeros(2)}
    after, metrics = population.step(state)
    assert after["mean"].tolist() == metrics["mean"].tolist() == [1.5, 11.5]
    assert "averaged" not in str(jax.make_jaxpr(population.step)(state))


def test_agents_have_no_policy_in_common() -> None:
    with pytest.raises(NotImplementedError, match="with the state of one"):
        Population(Counter(), num_envs=4).policy({})


def test_slices_share_the_agents_equally() -> None:
    plan = Plan(trace(Toy(), 8), (Place("slice", ROLES, replicas=4),))
    with pytest.raises(PlanError, match="6 seeds cannot be shared equally by 4 slices: choose a"):
        agents(plan, 6)
    executor = agents(plan, 8)
    try:
        assert executor.plan is plan
        crew = executor.crew.plan
        assert (crew.graph.num_envs, crew.graph.algorithm) == (8, Population(Toy(), 8))
        assert crew.axes_on(crew.place("slice")) is not None and not crew.averaging
    finally:
        executor.close()
