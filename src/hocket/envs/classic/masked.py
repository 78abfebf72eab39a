"""A wrapper that hides elements of the observation, so that the policy needs a memory."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array

from hocket.envs.drawing import Picture, drawn
from hocket.envs.env import Action, Env, State, Step
from hocket.envs.spaces import Box, Space


@dataclass(frozen=True)
class Masked:
    """`env` with only those elements of its observation vector whose indices are in `keep`.

    CartPole without its velocities:

        Masked(make("CartPole-v1"), keep=(0, 2))
    """

    env: Env
    keep: tuple[int, ...]

    def __post_init__(self) -> None:
        space, keep = self.env.observation_space, tuple(self.keep)
        object.__setattr__(self, "keep", keep)
        if not isinstance(space, Box) or len(space.shape) != 1:
            raise ValueError(
                f"`Masked` hides elements of a vector, but the environment's observation space is "
                f"{space}. First wrap the environment so that it flattens its observations."
            )
        size = space.shape[0]
        if not keep or not all(0 <= i < size for i in keep):
            raise ValueError(
                f"`keep={keep}` must be one or more indices from 0 to {size - 1}, because the "
                f"observation has {size} elements."
            )

    @property
    def observation_space(self) -> Box:
        space = self.env.observation_space
        assert isinstance(space, Box)
        low, high = (
            np.broadcast_to(x, space.shape)[list(self.keep)] for x in (space.low, space.high)
        )
        return Box(low, high, shape=(len(self.keep),), dtype=space.dtype)

    @property
    def action_space(self) -> Space:
        return self.env.action_space

    def reset(self, key: Array) -> tuple[State, Array]:
        state, obs = self.env.reset(key)
        return state, self._seen(obs)

    def step(self, state: State, action: Action, key: Array) -> tuple[State, Step]:
        state, step = self.env.step(state, action, key)
        return state, step._replace(obs=self._seen(step.obs))

    def draw(self, state: State) -> Picture:
        return drawn(self.env, state)

    def _seen(self, obs: Array) -> Array:
        # Elements are picked one by one: static slices fuse, a gather by an index array does not.
        return jnp.stack([obs[i] for i in self.keep])
