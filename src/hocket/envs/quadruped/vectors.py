"""Vectors in space with separate components, so that everything is computed element by element.

XLA fuses such code into few kernels. Arrays with an axis of three would be sliced and joined at
every cross product.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Vector:
    """Three arrays of one shape, or three numbers."""

    x: Any
    y: Any
    z: Any

    def __add__(self, other: Vector) -> Vector:
        return Vector(self.x + other.x, self.y + other.y, self.z + other.z)

    def __sub__(self, other: Vector) -> Vector:
        return Vector(self.x - other.x, self.y - other.y, self.z - other.z)

    def __mul__(self, factor: Any) -> Vector:
        return Vector(self.x * factor, self.y * factor, self.z * factor)

    def dot(self, other: Vector) -> Any:
        return self.x * other.x + self.y * other.y + self.z * other.z

    def cross(self, other: Vector) -> Vector:
        return Vector(
            self.y * other.z - self.z * other.y,
            self.z * other.x - self.x * other.z,
            self.x * other.y - self.y * other.x,
        )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Rotation:
    """A unit quaternion."""

    w: Array
    x: Array
    y: Array
    z: Array

    def axes(self) -> tuple[Vector, Vector, Vector]:
        """Return the rotated x, y and z axes: the columns of the rotation matrix."""
        w, x, y, z = self.w, self.x, self.y, self.z
        return (
            Vector(1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y)),
            Vector(2 * (x * y - w * z), 1 - 2 * (x * x + z * z), 2 * (y * z + w * x)),
            Vector(2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y)),
        )

    def turned(self, by: Vector) -> Rotation:
        """Return this rotation followed by a second one.

        The direction of `by` is the second rotation's axis, its length is the angle in radians.
        """
        # In any real turn, 1e-24 is lost in rounding. Without a turn, it makes sin(half) / half 1
        # instead of 0 / 0.
        half = 0.5 * jnp.sqrt(by.dot(by) + 1e-24)
        w, v = jnp.cos(half), by * (0.5 * jnp.sin(half) / half)
        q = (
            w * self.w - v.x * self.x - v.y * self.y - v.z * self.z,
            w * self.x + v.x * self.w + v.y * self.z - v.z * self.y,
            w * self.y - v.x * self.z + v.y * self.w + v.z * self.x,
            w * self.z + v.x * self.y - v.y * self.x + v.z * self.w,
        )
        scale = 1 / jnp.sqrt(sum(c * c for c in q))
        return Rotation(*(c * scale for c in q))
