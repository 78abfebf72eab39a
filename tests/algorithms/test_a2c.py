"""A2C: its loss, its schedule, and what it refuses. `test_impala.py` has the agent they share."""

from functools import cache
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from hocket.algorithms.a2c import A2C
from hocket.algorithms.actor_critic import State, policy_gradient_loss
from hocket.envs import Box, CartPole, Env, TimeLimit, make
from hocket.ops import Categorical, Moments

KEY = jax.random.key(0)
N = 8


@cache
def train(algo: A2C, iterations: int) -> tuple[State, dict[str, Array]]:
    """The state after some iterations, and the metrics of each."""
    return jax.jit(
        lambda key: jax.lax.scan(lambda s, _: algo.step(s), algo.init(key, N), None, iterations)
    )(KEY)


def small(env: Env | None = None, **options: Any) -> A2C:
    options = {"length": 12, "hidden": (16,), "env_steps": 3 * N * 12, **options}
    return A2C(env=env or TimeLimit(CartPole(), 12), **options)


def test_the_loss_is_that_of_the_paper() -> None:
    keys = jax.random.split(KEY, 5)
    logits, value, advantage, target = (jax.random.normal(k, (5, N)) for k in keys[:4])
    choices = Categorical(jnp.stack([logits, -logits], axis=-1))
    action = jax.random.bernoulli(keys[4], shape=(5, N)).astype(int)
    before = Moments(jnp.array(1.0), jnp.array(4.0), jnp.ones(()))
    agent: Any = SimpleNamespace(replay=lambda *_: (choices, value, value))
    learner: Any = SimpleNamespace(moments=None, returns=before)
    rollout: Any = SimpleNamespace(extras={"sample": action, "log_prob": 0.0})
    loss, (returns, metrics) = policy_gradient_loss(
        agent, learner, rollout, lambda *_: (advantage, target, {}), {},
        value_weight=0.5, entropy_weight=0.01,
    )  # fmt: skip
    np.testing.assert_array_equal(returns.mean, before.update(target).mean)
    p = np.asarray(jax.nn.softmax(choices.logits))
    taken = np.log(np.take_along_axis(p, np.asarray(action)[..., None], -1)[..., 0])
    policy = -(taken * advantage / np.sqrt(returns.var)).mean()
    error = 0.5 * np.square(value - (target - returns.mean) / np.sqrt(returns.var)).mean()
    entropy = -(p * np.log(p)).sum(-1).mean()
    np.testing.assert_allclose(loss, policy + 0.5 * error - 0.01 * entropy, rtol=1e-5)
    np.testing.assert_allclose(metrics["entropy"], entropy, rtol=1e-5)


def test_the_learning_rate_falls_to_zero_over_the_budget() -> None:
    (before, _), (after, _) = train(small(), 3), train(small(), 4)
    np.testing.assert_allclose(before.learner.progress, 1.0, rtol=1e-6)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6),
        after.learner.params, before.learner.params,
    )  # fmt: skip


def test_it_says_which_actions_it_cannot_take() -> None:
    class Odd(CartPole):
        action_space = Box(-1.0, 1.0, shape=(2, 2))  # type: ignore[assignment]

    with pytest.raises(ValueError, match=r"A2C cannot act in Box.*flatten the action"):
        A2C(env=Odd()).init(KEY, N)


def test_it_learns_catch() -> None:
    _, metrics = train(A2C(env=make("Catch"), env_steps=400 * N * 16), 400)
    last = [metrics[name][-40:].sum() for name in ("episode_return", "episode_count")]
    assert last[0] / last[1] > 0.5
