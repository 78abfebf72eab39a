"""Do they learn? Long runs: `pytest -m slow`."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from examples.sac import SAC

import hocket
from hocket import make
from hocket.algorithms import DQN, PPO, RecurrentPPO
from hocket.envs import Masked

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def final_returns(algorithm: Any, seeds: range) -> np.ndarray:
    """For each seed, the mean return of the last 100 episodes of training."""
    train = jax.jit(jax.vmap(hocket.program(algorithm)))
    _, metrics = train(jax.vmap(jax.random.key)(np.array(seeds)))
    found = []
    for i in range(len(seeds)):
        ended, total = (
            np.asarray(metrics[name][i]).reshape(metrics[name].shape[1], -1).sum(1)
            for name in ("episode_count", "episode_return")
        )
        last = int((np.cumsum(ended[::-1]) >= 100).argmax()) + 1
        found.append(total[-last:].sum() / ended[-last:].sum())
    return np.array(found)


def test_ppo_cartpole() -> None:
    returns = final_returns(PPO(env=make("CartPole-v1")), range(100, 120))
    assert (returns >= 475).sum() >= 18, returns


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
        pytest.param(lambda: DQN(env=make("CartPole-v1")), 475, id="dqn-cartpole"),
        pytest.param(lambda: DQN(env=make("Catch")), 0.9, id="dqn-catch"),
        pytest.param(lambda: SAC(env=make("Pendulum-v1")), -200, id="sac-pendulum"),
    ],
)
def test_learns(algorithm: Any, target: float) -> None:
    returns = final_returns(algorithm(), range(3))
    assert np.median(returns) >= target, returns
