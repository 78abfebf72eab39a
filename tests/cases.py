"""The algorithms of the package at sizes that compile in seconds, and the ways to place them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from hocket import Place, Plan, make, trace
from hocket.algorithms import DQN, PPO, RecurrentPPO
from hocket.envs import Masked
from hocket.runtime.executor import advance
from hocket.runtime.fused import Fused
from hocket.runtime.split import Split

NUM_ENVS = 8

ALGORITHMS: dict[str, Callable[[], Any]] = {
    "ppo": lambda: PPO(
        env=make("CartPole-v1"), length=8, epochs=2, minibatches=2, hidden=(16,), env_steps=20_000
    ),
    "ppo-continuous": lambda: PPO(
        env=make("Pendulum-v1"), length=8, epochs=2, minibatches=2, hidden=(16,), env_steps=20_000
    ),
    "recurrent-ppo": lambda: RecurrentPPO(
        env=Masked(make("CartPole-v1"), keep=(0, 2)), length=8, epochs=2, minibatches=2,
        hidden=(16,), memory=8, env_steps=20_000,
    ),
    "dqn": lambda: DQN(
        env=make("CartPole-v1"), length=4, capacity=512, min_size=64, batch_size=32, hidden=(16,),
        env_steps=20_000,
    ),
}  # fmt: skip

LEARN = ("learn", "gradient", "replay")

SPLITS: dict[str, tuple[Place, ...]] = {
    "env+act | learn": (Place("actor", ("env", "act")), Place("learner", LEARN)),
    "env | act+learn": (Place("env", ("env",)), Place("rest", ("act", *LEARN))),
    "env | act | learn": (Place("env", ("env",)), Place("act", ("act",)), Place("learner", LEARN)),
}

REPLAY_APART = (
    Place("actor", ("env", "act")), Place("replay", ("replay",)), Place("learner", ("learn",)),
)  # fmt: skip


def whole(replicas: int = 1, on: tuple[str, ...] = ()) -> tuple[Place, ...]:
    return (Place("all", ("env", "act", *LEARN), on=on, replicas=replicas),)


def actors(replicas: int) -> tuple[Place, ...]:
    return (Place("actor", ("env", "act"), replicas=replicas), Place("learner", LEARN))


def execute(
    name: str, places: tuple[Place, ...], iterations: int, exact: bool = False
) -> tuple[Any, Any]:
    """The state before and after some iterations, and the executor that made them."""
    plan = Plan(trace(ALGORITHMS[name](), NUM_ENVS, exact=exact), places)
    executor = Fused(plan, max_block=iterations) if len(places) == 1 else Split(plan)
    executor.start(jax.random.key(7))
    first = executor.state()
    advance(executor, iterations)
    return first, executor
