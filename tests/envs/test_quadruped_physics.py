"""The quadruped moves as MuJoCo moves the model made from the same table of numbers.

MuJoCo computes in float64, ours in float32. Every comparison takes 100 time steps, one second.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hocket.envs import Quadruped
from hocket.envs.quadruped.arrow import dense
from hocket.envs.quadruped.body import Body, mjcf
from hocket.envs.quadruped.env import QuadrupedState, spread
from hocket.envs.quadruped.physics import (
    free_systems,
    place_legs,
    torso_diagonal,
    torso_load,
    weights,
)

mujoco = pytest.importorskip("mujoco")

KEY = jax.random.key(0)
BODY = Body()
OTHER = Body(torso_mass=3.0, thigh_mass=0.7, shin_length=0.4, damping=0.5, friction=0.6)
NUM_RUNS, NUM_STEPS = 6, 100

both_bodies = pytest.mark.parametrize("body", [BODY, OTHER], ids=["usual", "other"])


class Runs(NamedTuple):
    """The state after every step, `[NUM_RUNS, NUM_STEPS, ...]`, ours and MuJoCo's."""

    q: np.ndarray
    v: np.ndarray
    their_q: np.ndarray
    their_v: np.ndarray
    contacts: np.ndarray
    limits: np.ndarray

    def apart(self) -> tuple[float, float]:
        return abs(self.q - self.their_q).max(), abs(self.v - self.their_v).max()


def run(body: Body, q: np.ndarray, v: np.ndarray, actions: np.ndarray) -> Runs:
    ours = player(body)(*(jnp.asarray(x, jnp.float32) for x in (q, v, actions)))
    return Runs(*jax.device_get(ours), *theirs(body, q, v, actions))


@cache
def player(body: Body) -> Any:
    env = Quadruped(body, substeps=1)

    def play(q: Any, v: Any, actions: Any) -> QuadrupedState:
        def one(state: QuadrupedState, action: Any) -> Any:
            state = env.step(state, action, KEY)[0]
            return state, state

        return jax.lax.scan(one, QuadrupedState(q, v), actions)[1]

    return jax.jit(jax.vmap(play))


def theirs(body: Body, q: np.ndarray, v: np.ndarray, actions: np.ndarray) -> list[np.ndarray]:
    model = mujoco.MjModel.from_xml_string(mjcf(body))
    runs = []
    for i in range(NUM_RUNS):
        data, states = mujoco.MjData(model), []
        data.qpos[:], data.qvel[:] = q[i], v[i]
        for action in actions[i]:
            data.ctrl[:] = action
            mujoco.mj_step(model, data)
            limits = data.nefc - 4 * data.ncon
            states.append((data.qpos.copy(), data.qvel.copy(), data.ncon, limits))
        runs.append([np.stack(x) for x in zip(*states, strict=True)])
    return [np.stack(x) for x in zip(*runs, strict=True)]


def states(height: float, speed: float, lean: float) -> tuple[np.ndarray, np.ndarray]:
    """Return states at a height, turned from upright at random by about `lean`."""
    rng = np.random.default_rng(0)
    turn = np.array([1, 0, 0, 0]) + lean * rng.normal(size=(NUM_RUNS, 4))
    turn /= np.linalg.norm(turn, axis=1, keepdims=True)
    hips = rng.uniform(-0.3, 0.3, (NUM_RUNS, 4))
    joints = np.stack([hips, rng.uniform(0.8, 1.3, (NUM_RUNS, 4))], 2).reshape(NUM_RUNS, 8)
    q = np.concatenate([np.tile([0, 0, height], (NUM_RUNS, 1)), turn, joints], 1)
    return q, speed * rng.normal(size=(NUM_RUNS, 14))


def torques(most: float, held: int) -> np.ndarray:
    """Return random actions, each held for `held` steps."""
    rng = np.random.default_rng(1)
    actions = rng.uniform(-most, most, (NUM_RUNS, NUM_STEPS // held, 8))
    return np.repeat(actions, held, axis=1)


@both_bodies
def test_flight(body: Body) -> None:
    """The robots turn over in the air, with weak motors."""
    result = run(body, *states(20.0, 0.5, lean=1.0), torques(0.02, held=1))
    assert result.contacts.sum() == 0 and result.limits.mean() < 0.5
    q, v = result.apart()
    assert q < 1e-4 and v < 1e-3, (q, v)


@both_bodies
def test_joint_limits(body: Body) -> None:
    """In the air, the motors push the joints into their limits and out again."""
    result = run(body, *states(20.0, 0.5, lean=1.0), torques(0.4, held=10))
    assert result.contacts.sum() == 0 and result.limits.mean() > 1
    q, v = result.apart()
    assert q < 1e-3 and v < 1e-2, (q, v)


@both_bodies
def test_landing(body: Body) -> None:
    """The robots fall askew and forward, with motors at work: they hit, slide and rebound."""
    q, v = states(0.75, 0.5, lean=0.1)
    v[:, 0] += 1.0
    result = run(body, q, v, torques(0.5, held=5))
    assert result.contacts[:, 0].sum() == 0 and (result.contacts.max(1) >= 3).all()
    apart_q, apart_v = result.apart()
    assert apart_q < 1e-3 and apart_v < 2e-2, (apart_q, apart_v)


def test_less_friction_slides_farther() -> None:
    q, v = states(0.0, 0.0, lean=0.0)
    q[:, 7:] = np.tile([0.0, 0.52], 4)
    v[:, 0] = 1.5
    idle = torques(0.0, held=1)

    def slid(body: Body) -> float:
        # A millimetre deep, because rounding decides if a foot at the surface touches the ground.
        q[:, 2] = body.shin_length * np.sin(0.52) + body.leg_radius - 1e-3
        result = run(body, q, v, idle)
        assert result.contacts.mean() > 1 and result.apart()[0] < 1e-3
        return result.q[0, -1, 0]

    assert slid(OTHER) > 1.3 * slid(BODY) > 0


class System(NamedTuple):
    """Inertia and bias in MuJoCo's coordinates, and the rotation from those to the world's."""

    inertia: np.ndarray
    bias: np.ndarray
    turn: np.ndarray


def system(body: Body, q: np.ndarray, v: np.ndarray) -> System:
    def free(q: Any, v: Any) -> Any:
        pose, motion = spread(QuadrupedState(q, v))
        still = jax.tree.map(jnp.zeros_like, motion.joints)
        axes = jnp.stack([jnp.stack([a.x, a.y, a.z]) for a in pose.rotation.axes()])
        return free_systems(body, place_legs(body, pose), motion, still), axes

    legs, axes = jax.device_get(jax.jit(free)(*(jnp.asarray(x, jnp.float32) for x in (q, v))))
    turn = np.eye(14)
    turn[3:6, 3:6] = axes.T
    force = np.sum(legs.force, -1) + torso_load(body)
    joints = np.stack([legs.torques.hip, legs.torques.knee], 1).ravel() + body.damping * v[6:]
    inertia = turn.T @ dense(legs, torso_diagonal(body)) @ turn
    return System(inertia, -turn.T @ np.concatenate([force, joints]), turn)


@both_bodies
def test_inertia_and_bias(body: Body) -> None:
    model = mujoco.MjModel.from_xml_string(mjcf(body))
    data = mujoco.MjData(model)
    for q, v in zip(*states(5.0, 2.0, lean=1.0), strict=True):
        data.qpos[:], data.qvel[:] = q, v
        mujoco.mj_forward(model, data)
        inertia = np.zeros((14, 14))
        for column, unit in zip(inertia, np.eye(14), strict=True):
            mujoco.mj_mulM(model, data, column, unit)
        ours = system(body, q, v)
        np.testing.assert_allclose(ours.inertia, inertia, atol=1e-5)
        np.testing.assert_allclose(ours.bias, data.qfrc_bias, atol=1e-5 * abs(ours.bias).max())


@both_bodies
def test_weights(body: Body) -> None:
    model = mujoco.MjModel.from_xml_string(mjcf(body))
    foot, (hip, knee) = model.body("shin2").invweight0[0], model.dof_invweight0[6:8]
    np.testing.assert_allclose(weights(body), (foot, hip, knee), rtol=1e-5)


def test_momentum_is_kept_without_gravity() -> None:
    """Motors and limits are inner forces. Half the time step makes half the error (first order)."""
    errors = []
    for timestep in (0.01, 0.005):
        body = replace(BODY, gravity=0.0, timestep=timestep)
        q, v = (x[:1] for x in states(10.0, 0.5, lean=1.0))
        held = torques(0.1, held=10)[:1, : round(0.5 / 0.01)]
        actions = np.repeat(held, round(0.01 / timestep), axis=1)
        result = player(body)(*(jnp.asarray(x, jnp.float32) for x in (q, v, actions)))
        last_q, last_v = (np.asarray(x[0, -1], np.float64) for x in result)
        before, after = momenta(body, q[0], v[0]), momenta(body, last_q, last_v)
        np.testing.assert_allclose(
            after[0], before[0], atol=0.02 * float(np.linalg.norm(before[0]))
        )
        errors.append(np.linalg.norm(after[1] - before[1]) / np.linalg.norm(before[1]))
        assert abs(last_v[6:] - v[0, 6:]).max() > 0.5  # the joints did move
    assert errors[0] < 0.1 and errors[1] < 0.7 * errors[0], errors


def momenta(body: Body, q: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the body's momentum, and its angular momentum around its centre of mass."""
    result = system(body, q, v)
    world = result.turn @ result.inertia @ result.turn.T
    linear, angular = np.split((world @ result.turn @ v)[:6], 2)
    skew = world[3:6, :3] / world[0, 0]
    centre = np.array([skew[2, 1], skew[0, 2], skew[1, 0]])  # of mass, seen from the torso
    return linear, angular - np.cross(centre, linear)
