"""Our classic-control environments take the steps that Gymnasium's take.

Gymnasium computes in float64, ours in float32. If rounding errors stay small, the two run side by
side through an episode. If they would grow (a balanced pole, a swinging arm), our state is set to
Gymnasium's before every step.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hocket.envs import Box, Discrete, make
from hocket.envs.classic.acrobot import AcrobotState
from hocket.envs.classic.cartpole import CartPoleState
from hocket.envs.classic.mountain_car import MountainCarState
from hocket.envs.classic.pendulum import PendulumState
from hocket.envs.env import TimeLimitState

NUM_STEPS = 1_000


class Case(NamedTuple):
    name: str
    state: Callable[..., Any]
    resync: bool
    act: Callable[[np.ndarray], int] | None
    """The action for an observation; None for random actions."""
    end: str
    """An end that these actions must meet."""


CASES = [
    Case("CartPole-v1", CartPoleState, False, None, "terminated"),
    Case("CartPole-v1", CartPoleState, True, lambda obs: obs[2] + obs[3] > 0, "truncated"),
    Case("MountainCar-v0", MountainCarState, False, None, "truncated"),
    Case("MountainCar-v0", MountainCarState, False, lambda obs: 2 * (obs[1] > 0), "terminated"),
    Case("Acrobot-v1", AcrobotState, True, None, "truncated"),
    Case("Acrobot-v1", AcrobotState, True, lambda obs: 2 * (obs[4] < 0), "terminated"),
    Case("Pendulum-v1", PendulumState, True, None, "truncated"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.name}-{c.end}")
def test_steps_equal_gymnasium(case: Case) -> None:
    theirs: Any = gymnasium.make(case.name, disable_env_checker=True)
    theirs.action_space.seed(0)
    step = jax.jit(make(case.name).step)
    key = jax.random.key(0)  # None of these environments draws random numbers in a step.
    state, their_obs = _restart(theirs, case, seed=0)
    ends = {"terminated": 0, "truncated": 0}

    for t in range(NUM_STEPS):
        action = int(case.act(their_obs)) if case.act else theirs.action_space.sample()
        if case.resync:
            state = TimeLimitState(_copy(theirs, case), state.steps)
        state, ours = step(state, jnp.asarray(action), key)
        their_obs, reward, terminated, truncated, _ = theirs.step(action)

        where = f"step {t}"
        np.testing.assert_allclose(ours.obs, their_obs, rtol=1e-4, atol=2e-5, err_msg=where)
        np.testing.assert_allclose(ours.reward, reward, rtol=1e-5, atol=1e-5, err_msg=where)
        assert ours.terminated == terminated, where
        assert ours.truncated == (truncated and not terminated), where
        ends["terminated"] += bool(terminated)
        ends["truncated"] += bool(truncated)
        if terminated or truncated:
            state, their_obs = _restart(theirs, case, seed=t)

    assert ends[case.end], ends


@pytest.mark.parametrize("name", sorted({case.name for case in CASES}))
def test_spaces_and_first_observations_equal_gymnasium(name: str) -> None:
    ours, theirs = make(name), gymnasium.make(name)
    for mine, other in (
        (ours.observation_space, theirs.observation_space),
        (ours.action_space, theirs.action_space),
    ):
        if isinstance(other, gymnasium.spaces.Box):
            assert isinstance(mine, Box)
            assert (mine.shape, mine.dtype) == (other.shape, other.dtype)
            np.testing.assert_allclose(np.broadcast_to(mine.low, mine.shape), other.low)
            np.testing.assert_allclose(np.broadcast_to(mine.high, mine.shape), other.high)
        else:
            assert isinstance(other, gymnasium.spaces.Discrete)
            assert mine == Discrete(int(other.n))
    keys = jax.random.split(jax.random.key(0), 2_000)
    firsts = np.asarray(jax.vmap(ours.reset)(keys)[1])
    their_firsts = np.stack([theirs.reset(seed=seed)[0] for seed in range(2_000)])
    np.testing.assert_allclose(firsts.min(axis=0), their_firsts.min(axis=0), atol=0.02)
    np.testing.assert_allclose(firsts.max(axis=0), their_firsts.max(axis=0), atol=0.02)


def _restart(theirs: Any, case: Case, seed: int) -> tuple[TimeLimitState, np.ndarray]:
    """Start an episode of theirs, and ours from the same state, rounded to float32."""
    obs, _ = theirs.reset(seed=seed)
    theirs.unwrapped.state = np.asarray(theirs.unwrapped.state, np.float32).astype(np.float64)
    return TimeLimitState(_copy(theirs, case), jnp.int32(0)), obs


def _copy(theirs: Any, case: Case) -> Any:
    return case.state(*jnp.asarray(theirs.unwrapped.state, jnp.float32))
