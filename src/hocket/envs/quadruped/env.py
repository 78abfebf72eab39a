"""Quadruped: walk on four legs, with eight motors, as far as possible."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from hocket.core.program.backend import swappable
from hocket.envs.drawing import BLUE, GREY, INK, ORANGE, PALE, Circle, Picture, Point, Shape, Stroke
from hocket.envs.env import Step
from hocket.envs.quadruped.arrow import Joints
from hocket.envs.quadruped.backends import dynamics_as_kernel
from hocket.envs.quadruped.body import NUM_LEGS, Body
from hocket.envs.quadruped.physics import Motion, Pose, advance, place_legs
from hocket.envs.quadruped.vectors import Rotation, Vector
from hocket.envs.spaces import Box

NUM_JOINTS = 2 * NUM_LEGS
BODY = Body()


class QuadrupedState(NamedTuple):
    """Positions and velocities, laid out as in MuJoCo's `qpos` and `qvel`."""

    q: Array
    """`[15]`: the torso's position and unit quaternion, then each leg's hip and knee angle."""
    v: Array
    """`[14]`: the torso's velocity, its spin around its own axes, then the speed of each joint."""


@dataclass(frozen=True)
class Quadruped:
    """A robot like MuJoCo's Ant, with the physics of MuJoCo up to rounding.

    An action gives the torque of each motor, from -1 to 1 times its maximum. The observation,
    `[27]`, is the state without x and y of the torso. The reward is the speed along x, plus a
    constant for staying alive, minus the cost of control. An episode terminates when the torso is
    too low or too high, or a knee touches the ground.
    """

    body: Body = BODY
    substeps: int = 4
    """Time steps of the physics in one step of the environment."""
    speed_reward: float = 1.0
    alive_reward: float = 1.0
    control_cost: float = 0.05
    """Cost of an action per unit of its sum of squares."""
    min_height: float = 0.25
    max_height: float = 1.2
    height: float = 0.55
    """Height of the torso when an episode begins."""
    knee: float = 1.0
    """Angle of every knee when an episode begins."""
    noise: float = 0.1
    """Largest random deviation of joint angles and all speeds when an episode begins."""

    @property
    def observation_space(self) -> Box:
        return Box(-math.inf, math.inf, shape=(27,))

    @property
    def action_space(self) -> Box:
        return Box(-1.0, 1.0, shape=(NUM_JOINTS,))

    @property
    def dt(self) -> float:
        """Seconds per step of the environment."""
        return self.substeps * self.body.timestep

    def reset(self, key: Array) -> tuple[QuadrupedState, Array]:
        noise = jax.random.uniform(
            key, (NUM_JOINTS + 6 + NUM_JOINTS,), jnp.float32, -self.noise, self.noise
        )
        upright = np.asarray([0, 0, self.height, 1, 0, 0, 0], np.float32)
        bent = np.tile(np.asarray([0, self.knee], np.float32), NUM_LEGS)
        q = jnp.concatenate([upright, bent + noise[:NUM_JOINTS]])
        state = QuadrupedState(q, noise[NUM_JOINTS:])
        return state, _observe(state)

    def step(self, state: QuadrupedState, action: Array, key: Array) -> tuple[QuadrupedState, Step]:
        action = jnp.clip(action, -1.0, 1.0)
        *moved, knees = type(self).dynamics(self, *state.q, *state.v, *action)
        after = QuadrupedState(jnp.stack(moved[:15]), jnp.stack(moved[15:]))
        sound = jnp.isfinite(after.q.sum() + after.v.sum())
        height = after.q[2]
        fallen = (height < self.min_height) | (height > self.max_height) | (knees < 0)
        speed = (after.q[0] - state.q[0]) / self.dt
        cost = self.control_cost * jnp.square(action).sum()
        reward = self.speed_reward * speed + self.alive_reward - cost
        # A state that is no longer finite ends the episode. Zeros keep NaN out of its last step.
        return after, Step(
            obs=jnp.where(sound, _observe(after), 0.0),
            reward=jnp.where(sound, reward, 0.0),
            terminated=fallen | ~sound,
            truncated=jnp.bool_(False),
        )

    @swappable("quadruped")
    def dynamics(self, *arrays: Array) -> tuple[Array, ...]:
        """Return the state after a step, and the height of the lowest knee.

        `arrays` has a separate array for each number of the state, then for each number of the
        action, all of the same shape. `dynamics_as_kernel` computes the same on a GPU.
        """
        q, v, action = arrays[:15], arrays[15:29], arrays[29:]
        legs = (Joints(*(jnp.stack(x[i::2]) for i in (0, 1))) for x in (q[7:], v[6:], action))
        after = self.moved((*q[:7], *v[:6]), *legs)
        torso, knees, joints = after[:13], after[13], after[14:]
        angles, speeds = (
            [joint[leg] for leg in range(NUM_LEGS) for joint in pair]
            for pair in (joints[:2], joints[2:])
        )
        return *torso[:7], *angles, *torso[7:], *speeds, knees

    def moved(
        self, torso: Sequence[Array], angles: Joints, speeds: Joints, action: Joints
    ) -> tuple[Array, ...]:
        """Compute `dynamics` with the joints of all legs stacked, `[4, ...]`.

        The results are 13 numbers of the torso, the height of the lowest knee, the angles of the
        hips, the angles of the knees, the speeds of the hips, and the speeds of the knees.
        """
        torques = jax.tree.map(lambda x: x * self.body.torque, action)

        def advanced(_: Any, now: tuple[Pose, Motion]) -> tuple[Pose, Motion]:
            return advance(self.body, *now, torques)

        now = unpacked(torso, angles, speeds)
        pose, motion = lax.fori_loop(0, self.substeps, advanced, now)
        p, r, v = pose.position, pose.rotation, motion.linear
        spin = (axis.dot(motion.angular) for axis in r.axes())
        knees = p.z + place_legs(self.body, pose).knee.z.min(0) - self.body.leg_radius
        after = (p.x, p.y, p.z, r.w, r.x, r.y, r.z, v.x, v.y, v.z, *spin)
        return *after, knees, *pose.joints, *motion.joints

    def draw(self, state: QuadrupedState) -> Picture:
        """Draw the robot from the side and slightly above, in a view that follows the torso."""
        x, y, z = (float(c) for c in state.q[:3])
        marks = range(math.floor(x) - 3, math.floor(x) + 5)
        ground = [Stroke([_seen(m, y - 2, 0), _seen(m, y + 2, 0)], PALE, 0.02) for m in marks]
        width = 2 * self.body.leg_radius
        parts: list[tuple[float, Shape]] = [
            (y, Circle(_seen(x, y, z), self.body.torso_radius, BLUE))
        ]
        for leg in jax.device_get(_limbs(self.body, state)).tolist():
            hip, knee, foot = (_seen(*point) for point in leg)
            limbs = [Stroke([hip, knee], ORANGE, width), Stroke([knee, foot], INK, 0.8 * width)]
            parts += [(leg[1][1], limb) for limb in (*limbs, Circle(foot, width / 2, GREY))]
        parts.sort(key=lambda part: -part[0])  # far parts first, so that near ones cover them
        left, bottom = _seen(x - 1.2, y, -0.5)
        return Picture(
            view=(left, bottom, left + 2.4, bottom + 1.6),
            shapes=[*ground, *(shape for _, shape in parts)],
        )


def _seen(x: float, y: float, z: float) -> Point:
    return x + 0.3 * y, z + 0.35 * y


@partial(jax.jit, static_argnums=0)
def _limbs(body: Body, state: QuadrupedState) -> Array:
    """Return the positions of each leg's hip, knee and foot, `[4, 3, 3]`."""
    pose, _ = spread(state)
    legs = place_legs(body, pose)
    points = (legs.hip, legs.knee, legs.knee + legs.shin * body.shin_length)
    return jnp.stack([jnp.stack([p.x, p.y, p.z], -1) for p in points], 1) + state.q[:3].reshape(
        1, 1, 3
    )


def _observe(state: QuadrupedState) -> Array:
    return jnp.concatenate([state.q[2:], state.v])


def unpacked(torso: Sequence[Array], angles: Joints, speeds: Joints) -> tuple[Pose, Motion]:
    """Return pose and motion, with the torso's spin converted from its own axes to the world's."""
    rotation = Rotation(*torso[3:7])
    forward, left, up = rotation.axes()
    spin = forward * torso[10] + left * torso[11] + up * torso[12]
    motion = Motion(Vector(*torso[7:10]), spin, speeds)
    return Pose(Vector(*torso[:3]), rotation, angles), motion


def spread(state: QuadrupedState) -> tuple[Pose, Motion]:
    """Return a state's pose and motion, which are what the functions of the physics take."""
    angles, speeds = (Joints(x[0::2], x[1::2]) for x in (state.q[7:], state.v[6:]))
    return unpacked((*state.q[:7], *state.v[:6]), angles, speeds)


Quadruped.dynamics.register("pallas", dynamics_as_kernel, platforms=["gpu"])
