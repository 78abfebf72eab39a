"""The arrays of one call of `averaged`, joined into one float32 and one float64 vector."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp


def through_vectors(
    fn: Callable[[jax.Array], jax.Array], xs: Sequence[jax.Array]
) -> list[jax.Array]:
    """Apply `fn` once to all float32 elements as one vector, and once to all float64 elements."""
    parts = [widened(x) for x in xs]
    means: dict[int, jax.Array] = {}
    for mine in _vectors(parts):
        ends = list(accumulate(parts[i].size for i in mine))[:-1]
        flat = fn(jnp.concatenate([parts[i].ravel() for i in mine]))
        for i, piece in zip(mine, jnp.split(flat, ends), strict=True):
            means[i] = piece.reshape(parts[i].shape)
    return [
        narrowed(means.get(i, part), x) for i, (part, x) in enumerate(zip(parts, xs, strict=True))
    ]


def vector_bytes(xs: Sequence[Any]) -> list[int]:
    """Return the size in bytes of each vector that `through_vectors` makes of these arrays."""
    parts = [jax.eval_shape(widened, x) for x in xs]
    return [sum(parts[i].size * parts[i].dtype.itemsize for i in mine) for mine in _vectors(parts)]


def widened(x: Any) -> jax.Array:
    """Return `x` as float32 or float64, the only types that are averaged.

    A narrower float becomes float32, in which it would be summed anyway. A complex array becomes
    the stack of its real and imaginary parts.
    """
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return jnp.stack([x.real, x.imag])
    return x if x.dtype in (jnp.float32, jnp.float64) else x.astype(jnp.float32)


def narrowed(mean: jax.Array, like: jax.Array) -> jax.Array:
    """Undo `widened`: convert a mean of widened arrays back to the dtype of `like`."""
    if jnp.issubdtype(like.dtype, jnp.complexfloating):
        return jax.lax.complex(mean[0], mean[1])
    return mean.astype(like.dtype)


def _vectors(parts: Sequence[Any]) -> list[list[int]]:
    """Group non-empty arrays by dtype, one group for each vector. Return each group's indices."""
    dtypes = sorted({str(part.dtype) for part in parts if part.size})
    return [
        [i for i, part in enumerate(parts) if part.size and str(part.dtype) == dtype]
        for dtype in dtypes
    ]
