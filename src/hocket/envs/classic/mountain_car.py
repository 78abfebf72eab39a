"""MountainCar: rock an underpowered car out of a valley (Moore, 1990)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from hocket.envs.drawing import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    PALE,
    Circle,
    Picture,
    Polygon,
    Stroke,
    box,
    posed,
)
from hocket.envs.env import Step
from hocket.envs.spaces import Box, Discrete


class MountainCarState(NamedTuple):
    position: Array
    velocity: Array


@dataclass(frozen=True)
class MountainCar:
    """Gymnasium's MountainCar: accelerate left (0), not at all (1) or right (2).

    The reward is -1 per step. The observation is the state `(position, velocity)`. An episode
    terminates at the flag on the right; the wall on the left stops the car.
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

    def draw(self, state: MountainCarState) -> Picture:
        x, wall, end = float(state.position), self.min_position, self.max_position
        slope = math.atan(1.35 * math.cos(3 * x))
        at, goal, post = (_on_hill(x) for x in (x, self.goal_position, wall - 0.07))
        wheels = posed([(-0.04, 0.025), (0.04, 0.025)], at, slope)
        return Picture(
            view=(wall - 0.15, 0.0, end + 0.15, 1.3),
            shapes=[
                Polygon([*_HILLS, (9, -9), (-9, -9)], PALE),
                Stroke(_HILLS, GREY, 0.008),
                Stroke(posed([(0, 0), (0, 0.12)], post), GREY, 0.02),
                Stroke(posed([(0, 0), (0, 0.2)], goal), INK, 0.01),
                Polygon(posed([(0, 0.2), (0, 0.12), (0.1, 0.16)], goal), ORANGE),
                Polygon(posed(box(-0.05, 0.04, 0.05, 0.075), at, slope), BLUE, rounding=0.015),
                *(Circle(wheel, 0.025, INK) for wheel in wheels),
            ],
        )


def _on_hill(position: float) -> tuple[float, float]:
    """Return the point on the drawn hill at this position.

    The hill is drawn with a slope that is proportional to `slope` in `step`.
    """
    return position, 0.45 * math.sin(3 * position) + 0.55


_HILLS = [_on_hill(i / 40) for i in range(-160, 161)]
