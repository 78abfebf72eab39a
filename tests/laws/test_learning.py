"""The algorithms learn: long runs, with `pytest -m slow`."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from examples.sac import SAC

import hocket
from hocket import make
from hocket.algorithms import A2C, DQN, IMPALA, PPO, RecurrentPPO
from hocket.algorithms.actor_critic import State
from hocket.envs import Masked, unroll

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def final_returns(algorithm: Any, seeds: range) -> np.ndarray:
    """Train, and return the mean return of the last 100 episodes for each seed."""
    return last_returns(jax.jit(jax.vmap(hocket.program(algorithm))), seeds)


def last_returns(train: Any, seeds: range) -> np.ndarray:
    _, metrics = train(jax.vmap(jax.random.key)(np.array(seeds)))
    returns = []
    for i in range(len(seeds)):
        ended, total = (
            np.asarray(metrics[name][i]).reshape(metrics[name].shape[1], -1).sum(1)
            for name in ("episode_count", "episode_return")
        )
        last = int((np.cumsum(ended[::-1]) >= 100).argmax()) + 1
        returns.append(total[-last:].sum() / ended[-last:].sum())
    return np.array(returns)


def test_ppo_cartpole() -> None:
    returns = final_returns(PPO(env=make("CartPole-v1")), range(100, 120))
    assert (returns >= 475).sum() >= 18, returns


def late_returns(algorithm: IMPALA, seeds: range, *, num_envs: int, lag: int) -> np.ndarray:
    """The same as `final_returns`, with actors whose parameters are `lag` updates old."""

    def train(key: Any) -> Any:
        def step(carry: Any, _: None) -> Any:
            (actor, learner), line = carry
            old = jax.tree.map(lambda x: x[0], line)
            actor, rollout = unroll(
                algorithm.env, partial(algorithm.act, *old), actor, algorithm.length
            )
            learner = algorithm.update(learner, rollout)[0]
            new = (learner.params, learner.moments)
            line = jax.tree.map(lambda xs, x: jnp.concatenate([xs[1:], x[None]]), line, new)
            return (State(actor, learner), line), rollout.episodes

        state = algorithm.init(key, num_envs)
        first = (state.learner.params, state.learner.moments)
        line = jax.tree.map(lambda x: jnp.broadcast_to(x, (lag + 1, *x.shape)), first)
        iterations = algorithm.env_steps // (num_envs * algorithm.length)
        return jax.lax.scan(step, (state, line), None, iterations)

    return last_returns(jax.jit(jax.vmap(train)), seeds)


def test_ppo_quadruped() -> None:
    """The quadruped walks: standing still returns 1,000. About four minutes on two cores."""
    algorithm = PPO(
        env=make("Quadruped-v1"), num_envs=256, length=32, minibatches=4, learning_rate=7e-4,
        discount=0.97, entropy_weight=0.0, env_steps=2_000_000,
    )  # fmt: skip
    returns = final_returns(algorithm, range(1))
    assert returns[0] >= 2500, returns


@pytest.mark.parametrize("lag", [1, 4, 8])
def test_impala_learns_from_late_actors(lag: int) -> None:
    """Each update uses 16 environments, as if four actors with 16 each took turns."""
    algorithm = IMPALA(env=make("CartPole-v1"))
    returns = late_returns(algorithm, range(100, 132), num_envs=16, lag=lag)
    reached = (returns >= 475).sum()
    print(f"| {lag} | {reached} of 32 | {returns.min():.1f} | {np.median(returns):.1f} |")  # noqa: T201
    assert reached >= 28, returns


@pytest.mark.parametrize(
    ("algorithm", "target"),
    [
        pytest.param(lambda: PPO(env=make("Acrobot-v1")), -100, id="ppo-acrobot"),
        pytest.param(lambda: PPO(env=make("Catch")), 0.9, id="ppo-catch"),
        pytest.param(lambda: PPO(env=make("Pendulum-v1")), -250, id="ppo-pendulum"),
        pytest.param(
            lambda: RecurrentPPO(env=Masked(make("CartPole-v1"), keep=(0, 2))),
            450,
            id="recurrent-ppo",
        ),
        pytest.param(lambda: IMPALA(env=make("CartPole-v1")), 475, id="impala-cartpole"),
        pytest.param(
            lambda: IMPALA(env=make("PositionOnlyCartPole"), memory=64),
            450,
            id="recurrent-impala",
        ),
        pytest.param(lambda: A2C(env=make("CartPole-v1")), 475, id="a2c-cartpole"),
        pytest.param(lambda: A2C(env=make("Catch")), 0.9, id="a2c-catch"),
        pytest.param(lambda: DQN(env=make("CartPole-v1")), 475, id="dqn-cartpole"),
        pytest.param(lambda: DQN(env=make("Catch")), 0.9, id="dqn-catch"),
        pytest.param(lambda: SAC(env=make("Pendulum-v1")), -200, id="sac-pendulum"),
    ],
)
def test_learns(algorithm: Any, target: float) -> None:
    returns = final_returns(algorithm(), range(3))
    assert np.median(returns) >= target, returns
