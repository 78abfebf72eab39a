"""The quadruped's physics: rigid bodies in joint coordinates, on slightly soft ground.

The problem is MuJoCo's (Todorov 2014, "Convex and analytically-invertible dynamics with contacts
and constraints"). The acceleration minimizes the sum of two terms. The first is its distance from
the acceleration without constraints, measured by the inertia. The second is a cost for feet that
touch the ground, with a pyramid of friction, and for joints beyond their range. A foot's force
reaches only the torso and its own leg, so every linear system has the shape of an arrow.

Coordinates are along the world's axes, relative to the torso's centre. A function that takes a
`Leg` computes a single leg. Everything is computed element by element.
"""

from __future__ import annotations

import math
from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from hocket.envs.quadruped.arrow import Joints, LegSystem, Six, Triangle, dense, solve
from hocket.envs.quadruped.body import NUM_LEGS, Body
from hocket.envs.quadruped.vectors import Rotation, Vector

ITERATIONS = 6
"""Rounds of Newton's method. Each round decides again which constraints exert a force."""


class Pose(NamedTuple):
    """Position and rotation of the torso, and the joints' angles."""

    position: Vector
    rotation: Rotation
    joints: Joints


class Motion(NamedTuple):
    """Velocities or accelerations of the torso, in the world's axes, and of the joints."""

    linear: Vector
    angular: Vector
    joints: Joints


# The `in_axes` for `vmap` over legs: each leg has its own joints, and all share the torso.
EACH_LEG = Motion(None, None, 0)  # pyright: ignore[reportArgumentType]


class Leg(NamedTuple):
    """Positions and directions of a leg, relative to the torso's centre."""

    hip: Vector
    knee: Vector
    foot: Vector
    """The point of contact: half-way between the foot's lowest point and the ground's surface."""
    hip_axis: Vector
    knee_axis: Vector
    thigh: Vector
    """Direction from the hip to the knee."""
    shin: Vector
    """Direction from the knee to the foot."""
    height: Array
    """Height of the foot's lowest point above the ground, negative if it is in the ground."""


class Weights(NamedTuple):
    """How easily a force moves each part, in the body's first pose (MuJoCo's `invweight0`)."""

    foot: float
    hip: float
    knee: float


def advance(body: Body, pose: Pose, motion: Motion, torques: Joints) -> tuple[Pose, Motion]:
    """Return pose and motion after one time step."""
    acceleration, dt = accelerate(body, pose, motion, torques), body.timestep
    # Semi-implicit Euler, as in MuJoCo: positions move with the new velocities.
    motion = jax.tree.map(lambda v, a: v + dt * a, motion, acceleration)
    pose = Pose(
        position=pose.position + motion.linear * dt,
        rotation=pose.rotation.turned(motion.angular * dt),
        joints=jax.tree.map(lambda x, v: x + dt * v, pose.joints, motion.joints),
    )
    return pose, motion


def accelerate(body: Body, pose: Pose, motion: Motion, torques: Joints) -> Motion:
    """Return the acceleration of a moving body, including the forces of the constraints."""
    legs = place_legs(body, pose)
    free = free_systems(body, legs, motion, torques)
    constrain_each = jax.vmap(
        partial(constrain, body, weights(body)), in_axes=(0, 0, 0, EACH_LEG, EACH_LEG)
    )

    # A round of Newton's method. It is exact once the set of pushing constraints no longer changes,
    # because the cost is then quadratic. In 7,200 states of falls and landings six rounds were
    # enough in every state, and with a friction of 0.3 in all but five states. Two variants
    # were slower: starting from the previous acceleration, and a line search.
    def refine(_: Array, guess: Motion) -> Motion:
        system = constrain_each(free, legs, pose.joints, motion, guess)
        return Motion(*solve(system, torso_diagonal(body), torso_load(body)))

    return lax.fori_loop(0, ITERATIONS, refine, jax.tree.map(jnp.zeros_like, motion))


def torso_diagonal(body: Body) -> tuple[float, ...]:
    """Return the diagonal of the torso's inertia matrix: mass three times, inertia three times."""
    return (body.torso_mass,) * 3 + (body.torso_inertia,) * 3


def torso_load(body: Body) -> tuple[float, ...]:
    """Return the torso's own weight, as a force and a moment."""
    return (0.0, 0.0, -body.torso_mass * body.gravity, 0.0, 0.0, 0.0)


@cache
def weights(body: Body) -> Weights:
    """Measure how easily a force moves each part of the body."""
    with jax.ensure_compile_time_eval():
        zero, one = jnp.zeros(()), jnp.ones(())
        nowhere, still = Vector(zero, zero, zero), Joints(*jnp.zeros((2, NUM_LEGS)))
        legs = place_legs(body, Pose(nowhere, Rotation(one, zero, zero, zero), still))
        free = free_systems(body, legs, Motion(nowhere, nowhere, still), still)
        inverse = np.linalg.inv(dense(free, torso_diagonal(body)))
        leg = jax.tree.map(lambda x: np.asarray(x[0], np.float64), legs)
    # MuJoCo measures a foot's weight at the centre of its shin, averaged over x, y and z.
    centre = leg.knee + leg.shin * (body.shin_length / 2)
    jacobian = np.zeros((3, len(inverse)))
    jacobian[:, :3] = np.eye(3)
    jacobian[:, 3:6] = [
        [0, centre.z, -centre.y],
        [-centre.z, 0, centre.x],
        [centre.y, -centre.x, 0],
    ]
    for column, axis, at in ((6, leg.hip_axis, leg.hip), (7, leg.knee_axis, leg.knee)):
        by = axis.cross(centre - at)
        jacobian[:, column] = [by.x, by.y, by.z]
    foot = np.trace(jacobian @ inverse @ jacobian.T) / 3
    return Weights(float(foot), float(inverse[6, 6]), float(inverse[7, 7]))


def place_legs(body: Body, pose: Pose) -> Leg:
    # The angles are computed, because a kernel cannot take an array of constants.
    angles = (jnp.arange(NUM_LEGS) + 0.5) * (math.tau / NUM_LEGS)
    place_each = jax.vmap(partial(place_leg, body), in_axes=(None, None, 0, 0))
    return place_each(pose.position.z, pose.rotation, angles, pose.joints)


def place_leg(body: Body, height: Array, rotation: Rotation, angle: Array, joints: Joints) -> Leg:
    forward, left, up = rotation.axes()
    turn = angle + joints.hip
    thigh = forward * jnp.cos(turn) + left * jnp.sin(turn)
    shin = thigh * jnp.cos(joints.knee) - up * jnp.sin(joints.knee)
    hip = (forward * jnp.cos(angle) + left * jnp.sin(angle)) * body.hip_distance
    knee = hip + thigh * body.thigh_length
    end = knee + shin * body.shin_length
    gap = height + end.z - body.leg_radius
    return Leg(
        hip=hip,
        knee=knee,
        foot=Vector(end.x, end.y, end.z - body.leg_radius - gap / 2),
        hip_axis=up,
        knee_axis=up.cross(thigh),
        thigh=thigh,
        shin=shin,
        height=gap,
    )


def free_systems(body: Body, legs: Leg, motion: Motion, torques: Joints) -> LegSystem:
    """Return the inertia and the forces of all legs, before any constraint."""
    return jax.vmap(partial(unconstrained, body), in_axes=(0, EACH_LEG, 0))(legs, motion, torques)


def unconstrained(body: Body, leg: Leg, motion: Motion, torques: Joints) -> LegSystem:
    """Return a leg's inertia and forces, before any constraint."""
    (_, thigh_across), (shin_along, shin_across) = body.thigh_inertia, body.shin_inertia
    thigh_arm, shin_arm = leg.thigh * (body.thigh_length / 2), leg.shin * (body.shin_length / 2)
    thigh, shin = leg.hip + thigh_arm, leg.knee + shin_arm  # their centres of mass
    # Momenta at a joint speed of one. The hip moves the thigh (a) and the shin (b), and the knee
    # moves the shin (c).
    a = leg.hip_axis.cross(thigh_arm) * body.thigh_mass
    b = leg.hip_axis.cross(shin - leg.hip) * body.shin_mass
    c = leg.knee_axis.cross(shin_arm) * body.shin_mass
    lean = (shin_along - shin_across) * leg.hip_axis.dot(leg.shin)
    spin = leg.hip_axis * (thigh_across + shin_across) + leg.shin * lean
    hip_hip = a.dot(a) / body.thigh_mass + b.dot(b) / body.shin_mass + leg.hip_axis.dot(spin)
    knee_knee = c.dot(c) / body.shin_mass + shin_across
    force, moment, bias = resist(body, leg, thigh, shin, motion)
    return LegSystem(
        torso=rigid(body, leg, thigh, shin),
        hip=six(a + b, thigh.cross(a) + shin.cross(b) + spin),
        knee=six(c, shin.cross(c) + leg.knee_axis * shin_across),
        hip_hip=hip_hip + body.armature,
        # Zero, because the hip swings the shin sideways, and the knee swings it up and down.
        hip_knee=jnp.zeros_like(hip_hip),
        knee_knee=knee_knee + body.armature,
        force=six(force * -1.0, moment * -1.0),
        torques=jax.tree.map(
            lambda t, v, b: t - body.damping * v - b, torques, motion.joints, bias
        ),
    )


def rigid(body: Body, leg: Leg, thigh: Vector, shin: Vector) -> Triangle:
    """Return a leg's inertia around the torso's centre, with its joints locked."""
    (thigh_along, thigh_across), (shin_along, shin_across) = body.thigh_inertia, body.shin_inertia
    parts = (
        (body.thigh_mass, thigh, thigh_along - thigh_across, leg.thigh),
        (body.shin_mass, shin, shin_along - shin_across, leg.shin),
    )
    at = thigh * body.thigh_mass + shin * body.shin_mass
    around = thigh_across + shin_across + body.thigh_mass * thigh.dot(thigh)
    around = around + body.shin_mass * shin.dot(shin)

    def product(i: str, j: str) -> Array:
        return sum(  # pyright: ignore[reportReturnType]
            slender * (vars(along)[i] * vars(along)[j]) - mass * (vars(p)[i] * vars(p)[j])
            for mass, p, slender, along in parts
        )

    zero = jnp.zeros_like(at.x)
    mass = zero + (body.thigh_mass + body.shin_mass)
    return (
        (mass,),
        (zero, mass),
        (zero, zero, mass),
        (zero, -at.z, at.y, around + product("x", "x")),
        (at.z, zero, -at.x, product("x", "y"), around + product("y", "y")),
        (-at.y, at.x, zero, product("x", "z"), product("y", "z"), around + product("z", "z")),
    )


def resist(
    body: Body, leg: Leg, thigh: Vector, shin: Vector, motion: Motion
) -> tuple[Vector, Vector, Joints]:
    """Return the force, moment and torques at which neither torso nor joints would accelerate.

    Force and moment act on the torso, the torques on the joints of one leg. They balance the leg's
    weight, and the centrifugal and gyroscopic effects of its motion.
    """
    (thigh_along, thigh_across), (shin_along, shin_across) = body.thigh_inertia, body.shin_inertia
    w0 = motion.angular
    w1 = w0 + leg.hip_axis * motion.joints.hip
    w2 = w1 + leg.knee_axis * motion.joints.knee
    # Rates at which the spins change while no joint accelerates, because the joints' axes turn.
    turn1 = w0.cross(leg.hip_axis) * motion.joints.hip
    turn2 = turn1 + w1.cross(leg.knee_axis) * motion.joints.knee

    def swung(w: Vector, turn: Vector, arm: Vector) -> Vector:
        return turn.cross(arm) + w.cross(w.cross(arm))

    def gyroscopic(w: Vector, turn: Vector, axis: Vector, along: float, across: float) -> Vector:
        more = along - across
        # The angular momentum without across * w, which is parallel to w, so that its cross product
        # with w is 0.
        spin = axis * (more * w.dot(axis))
        return turn * across + axis * (more * turn.dot(axis)) + w.cross(spin)

    hip = w0.cross(w0.cross(leg.hip))
    # Weight acts like an upward acceleration of everything.
    hip = Vector(hip.x, hip.y, hip.z + body.gravity)
    knee = hip + swung(w1, turn1, leg.knee - leg.hip)
    force1 = (hip + swung(w1, turn1, thigh - leg.hip)) * body.thigh_mass
    force2 = (knee + swung(w2, turn2, shin - leg.knee)) * body.shin_mass
    moment1 = gyroscopic(w1, turn1, leg.thigh, thigh_along, thigh_across)
    moment2 = gyroscopic(w2, turn2, leg.shin, shin_along, shin_across)
    at_knee = moment2 + (shin - leg.knee).cross(force2)
    at_hip = moment1 + moment2 + (thigh - leg.hip).cross(force1) + (shin - leg.hip).cross(force2)
    bias = Joints(leg.hip_axis.dot(at_hip), leg.knee_axis.dot(at_knee))
    force = force1 + force2
    return force, at_hip + leg.hip.cross(force), bias


def constrain(
    body: Body,
    weights: Weights,
    free: LegSystem,
    leg: Leg,
    angles: Joints,
    motion: Motion,
    guess: Motion,
) -> LegSystem:
    """Return a leg's linear system: `free`, plus the forces of the leg's constraints.

    `guess` is an estimate of the acceleration. It decides which constraints exert a force.
    """
    # A constraint asks for the acceleration -damp * speed - stiff * distance.
    stiff, damp = body.spring
    by_hip, by_knee = (
        leg.hip_axis.cross(leg.foot - leg.hip),
        leg.knee_axis.cross(leg.foot - leg.knee),
    )

    def at_foot(m: Motion) -> Vector:
        joints = by_hip * m.joints.hip + by_knee * m.joints.knee
        return m.linear + m.angular.cross(leg.foot) + joints

    wanted = at_foot(motion) * damp
    wanted = Vector(wanted.x, wanted.y, wanted.z + stiff * leg.height)
    x, y, z = friction(body, weights, leg.height, at_foot(guess) + wanted)
    p = leg.foot
    around = (z * p.y - y * p.z, x * p.z - z * p.x, y * p.x - x * p.y)
    # Each row is the force and moment on the torso for a unit of one of its six accelerations.
    torso = [six(f, p.cross(f)) for f in (x, y, z, *around)]
    hip, knee = (x * v.x + y * v.y + z * v.z for v in (by_hip, by_knee))
    push = x * wanted.x + y * wanted.y + z * wanted.z
    hip_limit, hip_push = limit(
        body.hip_range, weights.hip, body, angles.hip, motion.joints.hip, guess.joints.hip
    )
    knee_limit, knee_push = limit(
        body.knee_range, weights.knee, body, angles.knee, motion.joints.knee, guess.joints.knee
    )
    return LegSystem(
        torso=tuple(
            tuple(a + torso[j][i] for j, a in enumerate(row)) for i, row in enumerate(free.torso)
        ),
        hip=_plus(free.hip, six(hip, p.cross(hip))),
        knee=_plus(free.knee, six(knee, p.cross(knee))),
        hip_hip=free.hip_hip + by_hip.dot(hip) + hip_limit,
        hip_knee=free.hip_knee + by_hip.dot(knee),
        knee_knee=free.knee_knee + by_knee.dot(knee) + knee_limit,
        force=_plus(free.force, six(push * -1.0, p.cross(push) * -1.0)),
        torques=Joints(
            free.torques.hip - by_hip.dot(push) - hip_push,
            free.torques.knee - by_knee.dot(push) - knee_push,
        ),
    )


def friction(
    body: Body, weights: Weights, height: Array, excess: Vector
) -> tuple[Vector, Vector, Vector]:
    """Return the ground's resistance to a foot, as the columns of a symmetric 3 x 3 matrix.

    The force on the foot is minus the matrix times `excess`, where `excess` is the acceleration of
    the foot minus the acceleration that the contact asks for. The pyramid of friction has four
    edges. While the foot touches the ground, an edge pushes if `excess` along it is negative.
    """
    mu, hardness = body.friction, body.hardness
    softness = (1 - hardness) / hardness * weights.foot * (1 + mu**2) * 2 * mu**2
    touches = height < 0

    def edges(sideways: Array) -> tuple[Array, Array, Array]:
        plus = (touches & (excess.z + mu * sideways < 0)).astype(jnp.float32) / softness
        minus = (touches & (excess.z - mu * sideways < 0)).astype(jnp.float32) / softness
        return plus + minus, mu * (plus - minus), mu**2 * (plus + minus)

    x_count, xz, xx = edges(excess.x)
    y_count, yz, yy = edges(excess.y)
    zero = jnp.zeros_like(xx)
    return Vector(xx, zero, xz), Vector(zero, yy, yz), Vector(xz, yz, x_count + y_count)


def limit(
    bounds: tuple[float, float], weight: float, body: Body, angle: Array, speed: Array, guess: Array
) -> tuple[Array, Array]:
    """Return two terms for a joint: one to add to its inertia, one to subtract from its torque.

    Both are 0, unless the joint is beyond its range and has to be pushed back.
    """
    beyond = angle - jnp.clip(angle, *bounds)
    stiff, damp = body.spring
    wanted = damp * speed + stiff * beyond
    pushes = beyond * (guess + wanted) > 0
    hard = pushes.astype(jnp.float32) * (body.hardness / (1 - body.hardness) / weight)
    return hard, hard * wanted


def six(linear: Vector, angular: Vector) -> Six:
    return (linear.x, linear.y, linear.z, angular.x, angular.y, angular.z)


def _plus(a: Six, b: Six) -> Six:
    return tuple(x + y for x, y in zip(a, b, strict=True))
