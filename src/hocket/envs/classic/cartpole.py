"""CartPole: keep a pole upright on a moving cart (Barto, Sutton & Anderson, 1983)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from hocket.core.program.backend import swappable
from hocket.envs.classic.cartpole_backends import dynamics_as_kernel, dynamics_in_cpp
from hocket.envs.drawing import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    Circle,
    Picture,
    Polygon,
    Stroke,
    box,
    posed,
)
from hocket.envs.env import Step
from hocket.envs.spaces import Box, Discrete


class CartPoleState(NamedTuple):
    x: Array
    x_dot: Array
    theta: Array
    theta_dot: Array


@dataclass(frozen=True)
class CartPole:
    """Gymnasium's CartPole: push left (0) or right (1), for a reward of 1 in every step.

    The observation is the state `(x, x_dot, theta, theta_dot)`. An episode terminates once the cart
    is more than 2.4 from the centre, or the pole is more than 12 degrees from upright.
    """

    gravity: float = 9.8
    cart_mass: float = 1.0
    pole_mass: float = 0.1
    half_length: float = 0.5
    force: float = 10.0
    dt: float = 0.02
    max_x: float = 2.4
    max_theta: float = math.radians(12)

    @property
    def observation_space(self) -> Box:
        # The bounds are twice the limits, so that a final observation still lies inside.
        high = (2 * self.max_x, math.inf, 2 * self.max_theta, math.inf)
        return Box(tuple(-bound for bound in high), high, shape=(4,))

    @property
    def action_space(self) -> Discrete:
        return Discrete(2)

    def reset(self, key: Array) -> tuple[CartPoleState, Array]:
        obs = jax.random.uniform(key, (4,), jnp.float32, -0.05, 0.05)
        return CartPoleState(*obs), obs

    def step(self, state: CartPoleState, action: Array, key: Array) -> tuple[CartPoleState, Step]:
        state = CartPoleState(*self.dynamics(*state, action))
        terminated = (abs(state.x) > self.max_x) | (abs(state.theta) > self.max_theta)
        return state, Step(jnp.stack(state), jnp.float32(1.0), terminated, jnp.bool_(False))

    def draw(self, state: CartPoleState) -> Picture:
        x, theta, end = float(state.x), float(state.theta), self.max_x
        length = 2 * self.half_length
        return Picture(
            view=(-1.2 * end, -0.9, 1.2 * end, length + 0.6),
            shapes=[
                Stroke([(-99, -0.3), (99, -0.3)], GREY, 0.015),
                *(Stroke([(s * end, -0.3), (s * end, -0.18)], GREY, 0.03) for s in (-1, 1)),
                Polygon(posed(box(-0.26, -0.12, 0.26, 0.08), (x, 0)), BLUE, rounding=0.07),
                *(Circle((x + wheel, -0.2), 0.1, INK) for wheel in (-0.18, 0.18)),
                Stroke(posed([(0, 0), (0, length)], (x, 0.02), -theta), ORANGE, 0.09),
                Circle((x, 0.02), 0.03, INK),
            ],
        )

    @swappable("cartpole")
    def dynamics(
        self, x: Array, x_dot: Array, theta: Array, theta_dot: Array, action: Array
    ) -> CartPoleState:
        """Return the state after a step, for arrays of any shape.

        Also available in C++ and as a GPU kernel.
        """
        # After R. V. Florian, "Correct equations for the dynamics of the cart-pole system", 2007.
        total_mass = self.cart_mass + self.pole_mass
        pole_moment = self.pole_mass * self.half_length
        sin, cos = jnp.sin(theta), jnp.cos(theta)
        force = jnp.where(action == 1, self.force, -self.force)
        push = (force + pole_moment * theta_dot**2 * sin) / total_mass
        inertia = self.half_length * (4 / 3 - self.pole_mass * cos**2 / total_mass)
        theta_acc = (self.gravity * sin - cos * push) / inertia
        x_acc = push - pole_moment * theta_acc * cos / total_mass
        return CartPoleState(
            x=x + self.dt * x_dot,
            x_dot=x_dot + self.dt * x_acc,
            theta=theta + self.dt * theta_dot,
            theta_dot=theta_dot + self.dt * theta_acc,
        )


CartPole.dynamics.register("cpp", dynamics_in_cpp, platforms=["cpu"])
CartPole.dynamics.register("pallas", dynamics_as_kernel, platforms=["gpu"])
