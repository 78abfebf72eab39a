"""Gymnasium's own vector environments, as a block."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AutoresetMode, VectorEnv

from hocket.envs.gymnasium.block import (
    EnvBlock,
    EnvFault,
    StepRows,
    check_observations,
    check_rewards,
)
from hocket.envs.gymnasium.spaces import Actions, Observations


class VectorBlock(EnvBlock):
    """A vector environment of `gymnasium.make_vec`, which steps all environments as one object.

    It must begin a new episode in the step that ends the previous one. It has no snapshot. If its
    environments share one random generator, that generator is seeded from all seeds together.
    """

    def __init__(
        self,
        make_vector: Callable[[int], VectorEnv[Any, Any, Any]],
        observations: Observations,
        actions: Actions,
        check: bool,
        num_envs: int,
        at: Any,
    ) -> None:
        self._observations, self._actions, self._check = observations, actions, check
        self._env = make_vector(num_envs)
        _ = at  # not used: nobody can tell which environment is at work

    def reset(self, seeds: Sequence[int], obs: list[np.ndarray]) -> None:
        seed: Any = [int(seed) for seed in seeds]
        if isinstance(self._env, CartPoleVectorEnv):
            seed = int(np.random.SeedSequence(seeds).generate_state(1)[0])
        self._write(self._env.reset(seed=seed)[0], obs)

    def step(self, actions: list[np.ndarray], rows: StepRows) -> None:
        try:
            obs, reward, terminated, truncated, info = self._env.step(self._actions.batch(actions))
        except Exception as error:
            raise EnvFault(None, f"raised in `step`:\n{traceback.format_exc()}") from error
        rows.reward[:] = reward
        rows.terminated[:] = terminated
        rows.truncated[:] = np.asarray(truncated) & ~np.asarray(terminated)
        done = rows.terminated | rows.truncated
        if done.any():
            obs = self._begin_again(obs, info, done, rows)
        self._write(obs, rows.obs)
        if self._check:
            check_rewards(rows.reward)

    def close(self) -> None:
        self._env.close()

    def _begin_again(self, obs: Any, info: dict[str, Any], done: np.ndarray, rows: StepRows) -> Any:
        """Write the final observations, and return the observations to act on next."""
        if isinstance(self._env, CartPoleVectorEnv):
            self._write(obs, rows.final)
            return _begin_cartpoles(self._env)
        write = self._observations.writer(rows.final)
        for i in np.flatnonzero(done):
            write(int(i), info["final_obs"][i])
        return obs

    def _write(self, obs: Any, arrays: list[np.ndarray]) -> None:
        """Write a batch of observations into rows."""
        for rows, batch in zip(arrays, self._observations.batch(obs), strict=True):
            rows[:] = batch
        if self._check:
            check_observations(self._observations, arrays)


def same_step(vector: VectorEnv[Any, Any, Any]) -> bool:
    """Return True if `vector` can begin an episode in the step that ends the previous one."""
    if isinstance(vector, CartPoleVectorEnv):
        return True  # `_begin_cartpoles` does that for it
    return vector.metadata.get("autoreset_mode") == AutoresetMode.SAME_STEP


def _begin_cartpoles(env: CartPoleVectorEnv) -> np.ndarray:
    """Begin new episodes where others ended, and return the observations to act on next.

    Without this function, `env` would begin them one step later. It would draw the same random
    numbers then, so the episodes are those of Gymnasium.
    """
    done = env.prev_done
    assert env.state is not None
    env.state[:, done] = env.np_random.uniform(env.low, env.high, (4, int(done.sum())))
    env.steps[done] = 0
    env.prev_done = np.zeros_like(done)
    return env.state.T.astype(np.float32)
