"""Arrow-shaped linear systems, in which each leg couples to the torso but not to other legs.

The torso has six unknowns and each leg two. The legs are eliminated first, each by itself, which
leaves the six unknowns of the torso. Everything is written out number by number, because a library
call is slow for a batch of tiny systems, and XLA cannot fuse it with other code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
from jax import Array

from hocket.envs.quadruped.vectors import Vector

Six: TypeAlias = tuple[Array, ...]
"""A force along x, y, z and a moment around them, or the same for accelerations."""
Triangle: TypeAlias = tuple[Six, ...]
"""The lower half of a symmetric matrix, as rows that end at the diagonal."""


class Joints(NamedTuple):
    """One number for each joint of a leg."""

    hip: Array
    knee: Array


class LegSystem(NamedTuple):
    """One leg's contribution to the linear system: to its matrix, and to its right-hand side."""

    torso: Triangle
    hip: Six
    """The hip's row of the matrix: its entries in the six columns of the torso."""
    knee: Six
    """The knee's row of the matrix: its entries in the six columns of the torso."""
    hip_hip: Array
    hip_knee: Array
    knee_knee: Array
    force: Six
    """The right-hand side in the torso's six rows."""
    torques: Joints
    """The right-hand side in the rows of hip and knee."""


def solve(
    legs: LegSystem, diagonal: Sequence[float], load: Sequence[float]
) -> tuple[Vector, Vector, Joints]:
    """Return the torso's linear and angular acceleration, and the accelerations of all joints.

    The arrays in `legs` have a first axis of legs. The torso itself adds `diagonal` to the
    matrix, and `load` to the right-hand side.
    """
    matrix, force = jax.tree.map(lambda x: x.sum(0), jax.vmap(_condense)(legs))
    force = tuple(f + own for f, own in zip(force, load, strict=True))
    matrix = tuple((*row[:-1], row[-1] + own) for row, own in zip(matrix, diagonal, strict=True))
    torso = solve_dense(matrix, force)
    joints = jax.vmap(_joints, in_axes=(0, None))(legs, torso)
    return Vector(*torso[:3]), Vector(*torso[3:]), joints


def dense(legs: LegSystem, diagonal: Sequence[float]) -> np.ndarray:
    """Return the whole matrix: first the torso, then each leg's hip and knee."""
    num_legs = legs.hip_hip.shape[0]
    matrix = np.zeros((6 + 2 * num_legs,) * 2)
    matrix[np.diag_indices(6)] = diagonal
    for i, row in enumerate(legs.torso):
        for j, x in enumerate(row):
            matrix[i, j] += np.sum(x)
    for leg in range(num_legs):
        hip, knee = 6 + 2 * leg, 7 + 2 * leg
        matrix[hip, :6] = [x[leg] for x in legs.hip]
        matrix[knee, :6] = [x[leg] for x in legs.knee]
        matrix[hip, hip], matrix[knee, hip] = legs.hip_hip[leg], legs.hip_knee[leg]
        matrix[knee, knee] = legs.knee_knee[leg]
    return np.tril(matrix) + np.tril(matrix, -1).T


def _condense(leg: LegSystem) -> tuple[Triangle, Six]:
    """Return what a leg adds to the torso's system after its joints are eliminated."""
    by_hip, by_knee = _eliminated(leg)
    matrix = tuple(
        tuple(x - leg.hip[i] * by_hip[j] - leg.knee[i] * by_knee[j] for j, x in enumerate(row))
        for i, row in enumerate(leg.torso)
    )
    force = tuple(
        f - h * leg.torques.hip - k * leg.torques.knee
        for f, h, k in zip(leg.force, by_hip, by_knee, strict=True)
    )
    return matrix, force


def _joints(leg: LegSystem, torso: Six) -> Joints:
    """Return the accelerations of a leg's joints, given the torso's."""
    free_hip, free_knee = _invert(leg, leg.torques.hip, leg.torques.knee)
    by_hip, by_knee = _eliminated(leg)
    return Joints(free_hip - _dot(by_hip, torso), free_knee - _dot(by_knee, torso))


def _eliminated(leg: LegSystem) -> tuple[Six, Six]:
    """Return how much hip and knee acceleration one unit of each torso acceleration takes away."""
    pairs = (_invert(leg, h, k) for h, k in zip(leg.hip, leg.knee, strict=True))
    by_hip, by_knee = zip(*pairs, strict=True)
    return by_hip, by_knee


def _invert(leg: LegSystem, hip: Any, knee: Any) -> tuple[Array, Array]:
    """Solve the two-by-two system of a leg's joints."""
    scale = 1 / (leg.hip_hip * leg.knee_knee - leg.hip_knee * leg.hip_knee)
    return (
        (leg.knee_knee * hip - leg.hip_knee * knee) * scale,
        (leg.hip_hip * knee - leg.hip_knee * hip) * scale,
    )


def solve_dense(matrix: Triangle, force: Six) -> Six:
    """Solve a symmetric positive definite system, by `L D L^T`."""
    size = len(force)
    lower: list[list[Any]] = [[None] * i for i in range(size)]
    scaled: list[list[Any]] = [[None] * i for i in range(size)]  # the product of L and D
    inverse: list[Any] = []
    for i in range(size):
        for j in range(i):
            scaled[i][j] = matrix[i][j] - _dot(scaled[i][:j], lower[j][:j])
            lower[i][j] = scaled[i][j] * inverse[j]
        inverse.append(1 / (matrix[i][i] - _dot(scaled[i], lower[i])))
    x: list[Any] = []
    for i in range(size):
        x.append(force[i] - _dot(lower[i], x))
    x = [value * scale for value, scale in zip(x, inverse, strict=True)]
    for i in reversed(range(size)):
        x[i] = x[i] - _dot([lower[k][i] for k in range(i + 1, size)], x[i + 1 :])
    return tuple(x)


def _dot(a: Sequence[Any], b: Sequence[Any]) -> Any:
    return sum(x * y for x, y in zip(a, b, strict=True))
