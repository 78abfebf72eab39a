from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hocket import Policy, make
from hocket.envs import evaluate


def right(obs: Any, memory: Any, key: Any) -> Any:
    return jnp.int32(1), memory


def alternate(obs: Any, memory: Any, key: Any) -> Any:
    return memory % 2, memory + 1


@pytest.mark.parametrize("policy", [Policy(right), Policy(alternate, jnp.int32(0))])
def test_it_plays_whole_episodes(policy: Policy) -> None:
    env, key = make("CartPole-v1"), jax.random.key(3)
    result = jax.jit(lambda k: evaluate(env, policy, k, episodes=5))(key)
    for i, k in enumerate(jax.random.split(key, 5)):
        ret, length = play(env, policy, k)
        assert (ret, length) == (float(result.returns[i]), int(result.lengths[i]))
    assert result.ended.all() and len(set(np.asarray(result.lengths).tolist())) > 1


def play(env: Any, policy: Policy, key: Any) -> tuple[float, int]:
    """Play one episode by hand, step by step."""
    k_reset, key = jax.random.split(key)
    state, obs = env.reset(k_reset)
    memory, ret, length, done = policy.memory, 0.0, 0, False
    while not done:
        k_act, k_step, key = jax.random.split(key, 3)
        action, memory = policy(obs, memory, k_act)
        state, step = env.step(state, action, k_step)
        obs, ret, length, done = step.obs, ret + float(step.reward), length + 1, bool(step.done)
    return ret, length


def test_episodes_without_an_end_are_cut_and_say_so() -> None:
    env = make("Pendulum-v1", max_steps=None)
    still = Policy(lambda obs, memory, key: (jnp.zeros(1), memory))
    result = evaluate(env, still, jax.random.key(0), episodes=2, max_steps=7)
    assert not result.ended.any() and result.lengths.tolist() == [7, 7]
