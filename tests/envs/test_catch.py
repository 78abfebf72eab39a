"""Catch: the ball falls, the paddle moves, the last step is rewarded, as in bsuite (by gymnax)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hocket.envs import Catch
from hocket.envs.classic.catch import CatchState

KEY = jax.random.key(0)


def test_a_ball_is_caught_or_missed() -> None:
    env = Catch()
    for action, reward in ((2, 1.0), (0, -1.0), (1, -1.0)):
        state = CatchState(jnp.int32(0), jnp.int32(4), jnp.int32(2))
        for t in range(9):
            state, step = env.step(state, jnp.int32(action), KEY)
            assert step.terminated == (t == 8) and not step.truncated
            assert step.reward == (reward if t == 8 else 0.0)


def test_the_board_shows_ball_and_paddle() -> None:
    env = Catch()
    state, obs = env.reset(KEY)
    expected = np.zeros((10, 5), np.float32)
    expected[0, state.ball_column] = expected[9, 2] = 1.0
    np.testing.assert_array_equal(obs, expected)
    _, step = env.step(state, jnp.int32(0), KEY)
    expected = np.zeros((10, 5), np.float32)
    expected[1, state.ball_column] = expected[9, 1] = 1.0
    np.testing.assert_array_equal(step.obs, expected)


def test_balls_start_in_every_column() -> None:
    states, _ = jax.vmap(Catch().reset)(jax.random.split(KEY, 200))
    assert set(states.ball_column.tolist()) == {0, 1, 2, 3, 4}


def test_episodes_equal_gymnax() -> None:
    gymnax = pytest.importorskip("gymnax")
    theirs, params = gymnax.make("Catch-bsuite")
    _, their_state = theirs.reset_env(KEY, params)
    env = Catch()
    state = CatchState(their_state.ball_y, their_state.ball_x, their_state.paddle_x)
    for action in (0, 2, 2, 1, 2, 2, 0, 1, 0):
        state, step = env.step(state, jnp.int32(action), KEY)
        obs, their_state, reward, terminated, _ = theirs.step_env(KEY, their_state, action, params)
        np.testing.assert_array_equal(step.obs, obs)
        assert (step.reward, step.terminated) == (reward, terminated)
