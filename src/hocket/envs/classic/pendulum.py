"""Pendulum: swing a pendulum up and hold it there with a weak motor."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hocket.envs.drawing import GREY, INK, PALE, RED, Circle, Picture, Stroke
from hocket.envs.env import Step
from hocket.envs.spaces import Box


class PendulumState(NamedTuple):
    theta: Array
    theta_dot: Array


@dataclass(frozen=True)
class Pendulum:
    """Gymnasium's Pendulum: the action is a torque, and the reward is minus a cost.

    The observation is `(cos theta, sin theta, theta_dot)`, with `theta` zero when upright. Torques
    beyond `max_torque` are clipped. The cost is a weighted sum of the squares of the torque and of
    the angle and speed before the step. Episodes never terminate.
    """

    max_speed: float = 8.0
    max_torque: float = 2.0
    dt: float = 0.05
    gravity: float = 10.0
    mass: float = 1.0
    length: float = 1.0

    @property
    def observation_space(self) -> Box:
        high = (1.0, 1.0, self.max_speed)
        return Box(tuple(-bound for bound in high), high, shape=(3,))

    @property
    def action_space(self) -> Box:
        return Box(-self.max_torque, self.max_torque, shape=(1,))

    def reset(self, key: Array) -> tuple[PendulumState, Array]:
        high = np.asarray([math.pi, 1.0], np.float32)
        state = PendulumState(*jax.random.uniform(key, (2,), jnp.float32, -high, high))
        return state, _observe(state)

    def step(self, state: PendulumState, action: Array, key: Array) -> tuple[PendulumState, Step]:
        theta, theta_dot = state
        torque = jnp.clip(action[0], -self.max_torque, self.max_torque)
        cost = _normalized(theta) ** 2 + 0.1 * theta_dot**2 + 0.001 * torque**2
        theta_acc = (
            3 * self.gravity / (2 * self.length) * jnp.sin(theta)
            + 3 / (self.mass * self.length**2) * torque
        )
        theta_dot = jnp.clip(theta_dot + theta_acc * self.dt, -self.max_speed, self.max_speed)
        state = PendulumState(theta + theta_dot * self.dt, theta_dot)
        return state, Step(_observe(state), -cost, jnp.bool_(False), jnp.bool_(False))

    def draw(self, state: PendulumState) -> Picture:
        theta, theta_dot, length = float(state.theta), float(state.theta_dot), self.length
        # The trail behind the rod gets longer as the rod turns faster.
        swept = [_at(theta - 0.1 * theta_dot * i / 20, length) for i in range(21)]
        edge = 1.35 * length
        return Picture(
            view=(-edge, -edge, edge, edge),
            shapes=[
                Stroke([_at(2 * math.pi * i / 90, length) for i in range(91)], PALE, 0.012),
                Stroke([(0, 1.1 * length), (0, 1.2 * length)], GREY, 0.02),
                Stroke(swept, "#f0c3c9", 0.08),
                Stroke([(0, 0), _at(theta, length)], RED, 0.14),
                Circle((0, 0), 0.04, INK),
            ],
        )


def _at(theta: float, length: float) -> tuple[float, float]:
    """Return the free end of a rod that is attached to the origin, at the angle `theta`."""
    return -length * math.sin(theta), length * math.cos(theta)


def _observe(state: PendulumState) -> Array:
    return jnp.stack([jnp.cos(state.theta), jnp.sin(state.theta), state.theta_dot])


def _normalized(theta: Array) -> Array:
    """Return the angle between -pi and pi."""
    return (theta + math.pi) % (2 * math.pi) - math.pi
