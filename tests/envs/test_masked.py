"""Masked: the observation is a part of the inner environment's, and nothing else changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hocket.envs import Box, CartPole, Catch, Masked, check_env, make

KEY = jax.random.key(0)


def test_it_keeps_the_contract() -> None:
    check_env(Masked(make("CartPole-v1"), keep=(0, 2)))


def test_it_shows_the_kept_elements_in_their_order() -> None:
    env = CartPole()
    masked = Masked(env, keep=(2, 0))
    (state, obs), (_, seen) = env.reset(KEY), masked.reset(KEY)
    np.testing.assert_array_equal(seen, obs[jnp.array([2, 0])])
    (_, step), (_, seen_step) = (e.step(state, jnp.int32(1), KEY) for e in (env, masked))
    np.testing.assert_array_equal(seen_step.obs, step.obs[jnp.array([2, 0])])
    assert seen_step[1:] == step[1:]


def test_its_space_has_the_bounds_of_what_is_kept() -> None:
    space = Masked(CartPole(), keep=(0, 2)).observation_space
    high = (2 * CartPole().max_x, 2 * CartPole().max_theta)
    assert space == Box(tuple(-x for x in high), high, shape=(2,))


def test_it_refuses_what_is_not_there() -> None:
    with pytest.raises(ValueError, match=r"indices from 0 to 3, because .* 4 elements"):
        Masked(CartPole(), keep=(0, 4))
    with pytest.raises(ValueError, match="hides elements of a vector"):
        Masked(Catch(), keep=(0,))
