"""An algorithm whose samples tell where they come from, for tests of free plans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hocket import Plan, Policy, fragment, trace
from hocket.cluster import Cluster
from hocket.runtime.distributed import Split
from hocket.runtime.executor import advance
from hocket.strategies import resolve
from hocket.testing.seeded import Seeded

ACTORS, MAX_AGE = 4, 9
NUM_ENVS = 2 * ACTORS


class SampleState(NamedTuple):
    who: Any  # [N]
    number: Any  # [N]
    version: Any  # []
    total: Any  # []


@dataclass(frozen=True)
class Samples:
    """An algorithm whose samples say who made them, their number, and the version they used."""

    env_steps: int = 1000
    num_envs: int = NUM_ENVS

    def init(self, key: Any, num_envs: int) -> SampleState:
        start = jnp.zeros(num_envs, jnp.int32)
        return SampleState(jnp.arange(num_envs), start, jnp.int32(0), jnp.float32(0))

    @fragment
    def env(self, who: Any, number: Any) -> Any:
        return who + 0, number + 1

    @fragment
    def act(self, version: Any, total: Any, number: Any) -> Any:
        return jnp.broadcast_to(version, number.shape), jnp.broadcast_to(total, number.shape)

    @fragment(role="learn")
    def update(self, version: Any, total: Any, who: Any, number: Any, seen: Any) -> Any:
        # A total that depends on the order of the samples.
        return version + 1, 0.9 * total + (who[0] * number[0] + seen[0]).astype(jnp.float32)

    def step(self, state: SampleState) -> tuple[SampleState, dict[str, Any]]:
        who, number = self.env(state.who, state.number)
        made_with, seen = self.act(state.version, state.total, number)
        version, total = self.update(state.version, state.total, who, number, seen)
        row = {"who": who, "number": number, "made_with": made_with, "at": state.version}
        return SampleState(who, number, version, total), row

    def policy(self, state: SampleState, explore: bool = False) -> Policy:
        return Policy(lambda obs, memory, key: (obs, memory))


def plan_of(max_age: int = MAX_AGE, actors: int = ACTORS, batch: int = 1) -> Plan:
    words = f"actor_learner:actors={actors},lag=free,max_age={max_age},batch={batch}"
    return resolve(words)(trace(Samples(), NUM_ENVS), Cluster.local())


def late_samples(plan: Plan) -> dict[str, np.ndarray]:
    """Return the samples that are not learned from after 12 iterations, the same in every run."""
    executor = Split(plan, crew=Seeded(plan, 0))
    executor.start(jax.random.key(0))
    advance(executor, 12)
    late = {name: np.asarray(x) for name, x in executor.late().items()}
    executor.close()
    assert late
    return late
