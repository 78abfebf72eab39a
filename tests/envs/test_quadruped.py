"""The quadruped's episodes: observations, rewards, ends, and that all numbers stay sound."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hocket.envs import Quadruped, auto_reset, make
from hocket.envs.quadruped.env import QuadrupedState

ENV = Quadruped()
KEY = jax.random.key(0)
step = jax.jit(ENV.step)


def begun(**changed: float) -> QuadrupedState:
    """Return a state at rest, with some numbers of its pose changed."""
    state, _ = Quadruped(noise=0.0).reset(KEY)
    where = {"x": 0, "z": 2, "w": 3, "turn_y": 5}
    q = np.array(state.q)
    for name, value in changed.items():
        q[where[name]] = value
    return QuadrupedState(jnp.asarray(q), state.v)


def test_the_observation_is_the_state_without_the_place() -> None:
    state, obs = ENV.reset(KEY)
    np.testing.assert_array_equal(obs, jnp.concatenate([state.q[2:], state.v]))
    moved = QuadrupedState(state.q.at[:2].add(5.0), state.v)
    here, there = (step(s, jnp.full(8, 0.3), KEY)[1] for s in (state, moved))
    np.testing.assert_allclose(here.obs, there.obs, atol=1e-6)
    np.testing.assert_allclose(here.reward, there.reward, atol=1e-4)


def test_the_reward_is_speed_and_life_less_control() -> None:
    state = begun(z=1.0)
    state = state._replace(v=state.v.at[0].set(2.0))
    idle, busy = (step(state, jnp.full(8, a), KEY)[1].reward for a in (0.0, 1.0))
    np.testing.assert_allclose(idle, 2.0 + 1.0, atol=1e-3)
    np.testing.assert_allclose(idle - busy, 8 * ENV.control_cost, atol=0.05)
    beyond = step(state, jnp.full(8, 7.0), KEY)[1].reward
    np.testing.assert_allclose(beyond, busy)


def test_it_stands_without_doing_anything() -> None:
    """Its weight bends the knees to their limits, where it stays, with a reward of 1 per step."""

    def one(state: Any, _: None) -> Any:
        state, step = ENV.step(state, jnp.zeros(8), KEY)
        return state, (step.reward, step.terminated)

    state, (reward, terminated) = jax.jit(lambda s: jax.lax.scan(one, s, None, 1000))(begun())
    assert not terminated.any()
    np.testing.assert_allclose(reward.sum(), 1000, rtol=1e-2)
    low, _ = ENV.body.knee_range
    standing = ENV.body.shin_length * np.sin(low) + ENV.body.leg_radius
    np.testing.assert_allclose(state.q[2], standing, atol=0.02)
    np.testing.assert_allclose(state.v, 0.0, atol=1e-3)


ON_ITS_SIDE = {"w": np.sqrt(0.5), "turn_y": np.sqrt(0.5)}


@pytest.mark.parametrize(
    ("limits", "changed", "ends"),
    [
        ({}, {}, False),
        ({"min_height": 0.6}, {}, True),
        ({"max_height": 0.5}, {}, True),
        ({}, {"z": 0.8, **ON_ITS_SIDE}, False),
        # Two of its knees are in the ground.
        ({"min_height": -1.0}, {"z": 0.1, **ON_ITS_SIDE}, True),
    ],
)
def test_it_has_fallen(limits: dict[str, float], changed: dict[str, float], ends: bool) -> None:
    """The height after the step decides. At the beginning it is about 0.55."""
    env = replace(ENV, **limits)
    assert jax.jit(env.step)(begun(**changed), jnp.zeros(8), KEY)[1].terminated == ends


def test_what_is_not_finite_ends_the_episode_and_is_not_seen() -> None:
    result = step(begun(z=np.nan), jnp.zeros(8), KEY)[1]
    assert result.terminated and not result.truncated
    assert jnp.isfinite(result.obs).all() and jnp.isfinite(result.reward)


def test_long_random_play_is_sound() -> None:
    """Episodes end either way, and no number grows without bound."""
    env = make("Quadruped-v1", max_steps=100)
    num_envs, num_steps = 24, 500

    def one(state: Any, key: Any) -> Any:
        def each(state: Any, key: Any) -> Any:
            k_act, k_hard, k_env = jax.random.split(key, 3)
            # Some robots push back and forth, as hard as they can.
            action = env.action_space.sample(k_act)
            hard = jax.random.bernoulli(k_hard, 0.5)
            action = jnp.where(hard, jnp.sign(action), action)
            state, _, step = auto_reset(env, state, action, k_env)
            return state, step

        return jax.vmap(each)(state, jax.random.split(key, num_envs))

    state = jax.vmap(env.reset)(jax.random.split(KEY, num_envs))[0]
    _, steps = jax.jit(lambda s, ks: jax.lax.scan(one, s, ks))(
        state, jax.random.split(KEY, num_steps)
    )
    assert jnp.isfinite(steps.obs).all() and jnp.isfinite(steps.reward).all()
    assert abs(steps.obs).max() < 200
    assert not (steps.terminated & steps.truncated).any()
    assert steps.truncated.any()
    quaternion = steps.obs[..., 1:5]
    np.testing.assert_allclose(jnp.square(quaternion).sum(-1), 1.0, atol=1e-5)
