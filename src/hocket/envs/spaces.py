"""Descriptions of observations and actions, as small values that hash, print and compare."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, ShapeDtypeStruct
from jax.typing import DTypeLike


class _OneArray(ABC):
    """A space whose members are single arrays."""

    @abstractmethod
    def spec(self) -> ShapeDtypeStruct:
        """Return the shape and dtype of a member."""

    @abstractmethod
    def _holds(self, x: Array) -> Array:
        """Return True if all values of `x` are allowed. Its shape and dtype are already checked."""

    def contains(self, x: Any) -> Array:
        """Return True if `x` has a member's shape, kind of dtype and values. NaN is not valid."""
        x = jnp.asarray(x)
        spec = self.spec()
        fits = x.shape == spec.shape and np.can_cast(x.dtype, spec.dtype, "same_kind")
        return self._holds(x) if fits else jnp.asarray(False)

    def zeros(self) -> Array:
        """Return zeros of a member's shape and dtype, even if zero is out of bounds."""
        spec = self.spec()
        return jnp.zeros(spec.shape, spec.dtype)


@dataclass(frozen=True)
class Box(_OneArray):
    """Arrays of one shape and dtype, within inclusive bounds.

    A bound is a number, or anything that broadcasts to `shape`. To keep the box hashable, bounds
    are stored as numbers, or as nested tuples if they differ between elements.

        Box(-1.0, 1.0, shape=(3,))
    """

    low: Any
    high: Any
    shape: tuple[int, ...]
    dtype: DTypeLike = "float32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        object.__setattr__(self, "dtype", np.dtype(self.dtype))
        object.__setattr__(self, "low", _bound("low", self.low, self))
        object.__setattr__(self, "high", _bound("high", self.high, self))

    @property
    def bounded(self) -> bool:
        """True if every bound is finite."""
        return bool(np.isfinite(self.low).all() and np.isfinite(self.high).all())

    def sample(self, key: Array) -> Array:
        """Draw uniformly if the box is bounded, else from a standard normal, clipped to the bounds.

        Integer boxes are always bounded.
        """
        low, high = self._bounds()
        if not jnp.issubdtype(self.dtype, jnp.floating):
            # The upper bound of `randint` is exclusive, so the maximum of int32 is never drawn.
            stop = np.minimum(high, np.iinfo(np.int32).max - 1) + 1
            return jax.random.randint(key, self.shape, low, stop).astype(self.dtype)
        if self.bounded:
            return jax.random.uniform(key, self.shape, self.dtype, low, high)
        return jnp.clip(jax.random.normal(key, self.shape, self.dtype), low, high)

    def spec(self) -> ShapeDtypeStruct:
        return ShapeDtypeStruct(self.shape, self.dtype)

    def _holds(self, x: Array) -> Array:
        low, high = (bound.astype(self.dtype) for bound in self._bounds())
        return jnp.all((x >= low) & (x <= high))

    def _bounds(self) -> tuple[np.ndarray, np.ndarray]:
        return np.broadcast_to(self.low, self.shape), np.broadcast_to(self.high, self.shape)


@dataclass(frozen=True)
class Discrete(_OneArray):
    """One choice: an int32 scalar, one of `0 .. n - 1`."""

    n: int

    def sample(self, key: Array) -> Array:
        """Draw uniformly."""
        return jax.random.randint(key, (), 0, self.n)

    def spec(self) -> ShapeDtypeStruct:
        return ShapeDtypeStruct((), jnp.int32)

    def _holds(self, x: Array) -> Array:
        return (x >= 0) & (x < self.n)


@dataclass(frozen=True)
class MultiDiscrete(_OneArray):
    """Several choices at once: an int32 vector whose element `i` is one of `0 .. sizes[i] - 1`."""

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(self.sizes))

    def sample(self, key: Array) -> Array:
        """Draw uniformly."""
        return jax.random.randint(key, (len(self.sizes),), 0, np.asarray(self.sizes))

    def spec(self) -> ShapeDtypeStruct:
        return ShapeDtypeStruct((len(self.sizes),), jnp.int32)

    def _holds(self, x: Array) -> Array:
        return jnp.all((x >= 0) & (x < np.asarray(self.sizes)))


@dataclass(frozen=True)
class DictSpace:
    """A dict with a space for each key."""

    spaces: Mapping[str, Space]

    def __post_init__(self) -> None:
        object.__setattr__(self, "spaces", dict(self.spaces))

    def __hash__(self) -> int:
        return hash(frozenset(self.spaces.items()))

    def sample(self, key: Array) -> dict[str, Any]:
        """Draw from each space, with separate PRNG keys."""
        pairs = zip(self.spaces.items(), jax.random.split(key, len(self.spaces)), strict=True)
        return {name: space.sample(k) for (name, space), k in pairs}

    def contains(self, x: Any) -> Array:
        """Return True if `x` has the same keys, and each value lies in its space."""
        if not isinstance(x, Mapping) or x.keys() != self.spaces.keys():
            return jnp.asarray(False)
        return jnp.all(jnp.stack([space.contains(x[name]) for name, space in self.spaces.items()]))

    def spec(self) -> dict[str, Any]:
        """Return the shapes and dtypes of a member."""
        return {name: space.spec() for name, space in self.spaces.items()}

    def zeros(self) -> dict[str, Any]:
        """Return the zeros of each space."""
        return {name: space.zeros() for name, space in self.spaces.items()}


Space: TypeAlias = Box | Discrete | MultiDiscrete | DictSpace


def unbounded(bound: Any, dtype: Any) -> np.ndarray:
    """Replace the largest float by infinity, because in some packages it means "no bound"."""
    return np.where(np.abs(bound) >= np.finfo(dtype).max, np.copysign(np.inf, bound), bound)


def _bound(side: str, bound: Any, box: Box) -> Any:
    """Return `bound` in hashable form: a number if all elements are equal, else nested tuples."""
    values = np.asarray(bound)
    try:
        np.broadcast_to(values, box.shape)
    except ValueError:
        raise ValueError(
            f"the bound `{side}` of a Box has shape {values.shape}, which does not broadcast to "
            f"the box's shape {box.shape}. Give one number, or one per element."
        ) from None
    if jnp.issubdtype(box.dtype, jnp.floating):
        values = values.astype(np.float64)
    elif np.isfinite(values).all():
        values = values.astype(np.int64)
    else:
        raise ValueError(
            f"the bound `{side}` of a Box of {box.dtype} is {bound}. Integers need finite bounds."
        )
    if values.size and (values == values.flat[0]).all():
        return values.flat[0].item()
    return _nested_tuple(values.tolist())


def _nested_tuple(values: Any) -> Any:
    return tuple(_nested_tuple(v) for v in values) if isinstance(values, list) else values
