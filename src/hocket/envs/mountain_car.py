"""MountainCar: rock an underpowered car out of a valley (Moore, 1990)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from hocket.envs.env import Step
from hocket.envs.spaces import Box, Discrete


class MountainCarState(NamedTuple):
    position: Array
    velocity: Array


@dataclass(frozen=True)
class MountainCar:
    """Gymnasium's MountainCar: accelerate left (0), not (1) or right (2), reward -1 a step.

    The observation is the state `(position, velocity)`. An episode terminates at the flag on the
    right; the wall on the left stops the car.
    """

    min_position: float = -1.2
    max_position: float = 0.6
    max_speed: float = 0.07
    goal_position: float = 0.5
    goal_velocity: float = 0.0
    force: float = 0.001
    gravity: float = 0.0025

    @property
    def observation_space(self) -> Box:
        low, high = (self.min_position, -self.max_speed), (self.max_position, self.max_speed)
        return Box(low, high, shape=(2,))

    @property
    def action_space(self) -> Discrete:
        return Discrete(3)

    def reset(self, key: Array) -> tuple[MountainCarState, Array]:
        position = jax.random.uniform(key, (), jnp.float32, -0.6, -0.4)
        state = MountainCarState(position, jnp.zeros((), jnp.float32))
        return state, jnp.stack(state)

    def step(
        self, state: MountainCarState, action: Array, key: Array
    ) -> tuple[MountainCarState, Step]:
        slope = jnp.cos(3 * state.position)
        velocity = state.velocity + (action - 1) * self.force - slope * self.gravity
        velocity = jnp.clip(velocity, -self.max_speed, self.max_speed)
        position = jnp.clip(state.position + velocity, self.min_position, self.max_position)
        at_wall = (position == self.min_position) & (velocity < 0)
        state = MountainCarState(position, jnp.where(at_wall, 0.0, velocity))
        terminated = (position >= self.goal_position) & (state.velocity >= self.goal_velocity)
        return state, Step(jnp.stack(state), jnp.float32(-1.0), terminated, jnp.bool_(False))
