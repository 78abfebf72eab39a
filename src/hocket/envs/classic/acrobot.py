"""Acrobot: swing a two-link arm above a line with a motor at its elbow (Sutton, 1996)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from hocket.envs.drawing import BLUE, GREEN, GREY, INK, Circle, Picture, Stroke, posed
from hocket.envs.env import Step
from hocket.envs.spaces import Box, Discrete


class AcrobotState(NamedTuple):
    theta_1: Array
    theta_2: Array
    theta_1_dot: Array
    theta_2_dot: Array


@dataclass(frozen=True)
class Acrobot:
    """Gymnasium's Acrobot, with the dynamics of Sutton & Barto's book.

    Actions 0, 1, 2 are torques of -1, 0, 1 on the joint between the links. `theta_1` is the first
    link's angle from hanging down, `theta_2` the second link's angle relative to the first. The
    observation is the cosine and sine of each angle, then both angular speeds. An episode
    terminates when the tip is more than one link's length above the upper joint. The reward of that
    step is 0, and -1 for every other step.
    """

    dt: float = 0.2
    gravity: float = 9.8
    link_length_1: float = 1.0
    link_mass_1: float = 1.0
    link_mass_2: float = 1.0
    link_com_1: float = 0.5
    link_com_2: float = 0.5
    link_moi: float = 1.0
    max_speed_1: float = 4 * math.pi
    max_speed_2: float = 9 * math.pi

    @property
    def observation_space(self) -> Box:
        high = (1.0, 1.0, 1.0, 1.0, self.max_speed_1, self.max_speed_2)
        return Box(tuple(-bound for bound in high), high, shape=(6,))

    @property
    def action_space(self) -> Discrete:
        return Discrete(3)

    def reset(self, key: Array) -> tuple[AcrobotState, Array]:
        state = AcrobotState(*jax.random.uniform(key, (4,), jnp.float32, -0.1, 0.1))
        return state, _observe(state)

    def step(self, state: AcrobotState, action: Array, key: Array) -> tuple[AcrobotState, Step]:
        moved = self._integrate(state, torque=(action - 1).astype(jnp.float32))
        state = AcrobotState(
            theta_1=_wrapped(moved.theta_1),
            theta_2=_wrapped(moved.theta_2),
            theta_1_dot=jnp.clip(moved.theta_1_dot, -self.max_speed_1, self.max_speed_1),
            theta_2_dot=jnp.clip(moved.theta_2_dot, -self.max_speed_2, self.max_speed_2),
        )
        terminated = -jnp.cos(state.theta_1) - jnp.cos(state.theta_1 + state.theta_2) > 1.0
        reward = jnp.where(terminated, jnp.float32(0.0), jnp.float32(-1.0))
        return state, Step(_observe(state), reward, terminated, jnp.bool_(False))

    def draw(self, state: AcrobotState) -> Picture:
        theta_1, theta_2 = float(state.theta_1), float(state.theta_2)
        # The links are drawn with length one for any parameters, as `terminated` assumes too.
        (elbow,) = posed([(0, -1)], (0, 0), theta_1)
        (tip,) = posed([(0, -1)], elbow, theta_1 + theta_2)
        return Picture(
            view=(-2.2, -2.2, 2.2, 2.2),
            shapes=[
                Stroke([(-99, 1), (99, 1)], GREEN if tip[1] > 1 else GREY, 0.02),
                Stroke([(0, 0), elbow], BLUE, 0.2),
                Stroke([elbow, tip], "#7fa8d9", 0.16),
                *(Circle(joint, 0.05, INK) for joint in [(0, 0), elbow]),
            ],
        )

    def _integrate(self, state: AcrobotState, torque: Array) -> AcrobotState:
        """Take one step of the classic Runge-Kutta method."""

        def along(slope: AcrobotState, dt: float) -> AcrobotState:
            return AcrobotState(*(s + dt * d for s, d in zip(state, slope, strict=True)))

        k1 = self._derivative(state, torque)
        k2 = self._derivative(along(k1, self.dt / 2), torque)
        k3 = self._derivative(along(k2, self.dt / 2), torque)
        k4 = self._derivative(along(k3, self.dt), torque)
        slopes = zip(k1, k2, k3, k4, strict=True)
        mean = AcrobotState(*((a + 2 * b + 2 * c + d) / 6 for a, b, c, d in slopes))
        return along(mean, self.dt)

    def _derivative(self, state: AcrobotState, torque: Array) -> AcrobotState:
        m1, m2, l1, lc1, lc2 = (
            self.link_mass_1, self.link_mass_2, self.link_length_1, self.link_com_1, self.link_com_2
        )  # fmt: skip
        theta_1, theta_2, dtheta_1, dtheta_2 = state
        sin_2, cos_2 = jnp.sin(theta_2), jnp.cos(theta_2)
        d1 = m1 * lc1**2 + m2 * (l1**2 + lc2**2 + 2 * l1 * lc2 * cos_2) + 2 * self.link_moi
        d2 = m2 * (lc2**2 + l1 * lc2 * cos_2) + self.link_moi
        # The book writes cos(a - pi/2), which is sin(a).
        phi2 = m2 * lc2 * self.gravity * jnp.sin(theta_1 + theta_2)
        phi1 = (
            -m2 * l1 * lc2 * (dtheta_2**2 + 2 * dtheta_2 * dtheta_1) * sin_2
            + (m1 * lc1 + m2 * l1) * self.gravity * jnp.sin(theta_1)
            + phi2
        )
        ddtheta_2 = (torque + d2 / d1 * phi1 - m2 * l1 * lc2 * dtheta_1**2 * sin_2 - phi2) / (
            m2 * lc2**2 + self.link_moi - d2**2 / d1
        )
        ddtheta_1 = -(d2 * ddtheta_2 + phi1) / d1
        return AcrobotState(dtheta_1, dtheta_2, ddtheta_1, ddtheta_2)


def _observe(state: AcrobotState) -> Array:
    theta_1, theta_2, dtheta_1, dtheta_2 = state
    cosines_and_sines = (jnp.cos(theta_1), jnp.sin(theta_1), jnp.cos(theta_2), jnp.sin(theta_2))
    return jnp.stack([*cosines_and_sines, dtheta_1, dtheta_2])


def _wrapped(theta: Array) -> Array:
    """Return the angle between -pi and pi. An angle already in that range is unchanged."""
    return theta - 2 * math.pi * jnp.round(theta / (2 * math.pi))
