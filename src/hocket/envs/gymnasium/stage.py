"""One Gymnasium environment that renders itself."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import DependencyNotInstalled

from hocket.envs.gymnasium.spaces import Actions, Observations


class GymnasiumStage:
    """A `Stage` of an environment that was made with `render_mode="rgb_array"`."""

    def __init__(
        self, env: gym.Env[Any, Any], name: str, observations: Observations, actions: Actions
    ) -> None:
        self._env, self._name = env, name
        self._observations, self._actions = observations, actions

    def reset(self, seed: int) -> Any:
        return self._observed(self._env.reset(seed=seed)[0])

    def step(self, action: Any) -> tuple[Any, float, bool]:
        (row,) = self._actions.rows(self._actions.arrays(action))
        obs, reward, terminated, truncated, _ = self._env.step(row)
        return self._observed(obs), float(reward), bool(terminated or truncated)

    def frame(self) -> np.ndarray:
        try:
            frame = np.asarray(self._env.render())
        except DependencyNotInstalled as error:
            raise ImportError(f"`{self._name}` cannot be drawn: {error}") from error
        if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[-1] != 3:
            raise ValueError(
                f"`{self._name}` cannot be filmed: its `render` returned {frame.dtype}"
                f"{list(frame.shape)}. With render_mode='rgb_array', return uint8 [H, W, 3]."
            )
        return frame

    def close(self) -> None:
        self._env.close()

    def _observed(self, obs: Any) -> Any:
        rows = self._observations.empty(1)
        self._observations.writer(rows)(0, obs)
        return self._observations.tree(rows)
