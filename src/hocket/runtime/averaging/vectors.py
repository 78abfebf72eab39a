"""The arrays of one `averaged`, as one vector of each of the types that means are taken in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp


def through_vectors(
    fn: Callable[[jax.Array], jax.Array], xs: Sequence[jax.Array]
) -> list[jax.Array]:
    """Apply `fn` to these arrays: once to a vector of all float32, and once to one of float64."""
    parts = [widened(x) for x in xs]
    means: dict[int, jax.Array] = {}
    for mine in _vectors(parts):
        sizes = [parts[i].size for i in mine]
        ends = [sum(sizes[:k]) for k in range(1, len(sizes))]
        flat = fn(jnp.concatenate([parts[i].ravel() for i in mine]))
        for i, piece in zip(mine, jnp.split(flat, ends), strict=True):
            means[i] = piece.reshape(parts[i].shape)
    return [
        narrowed(means.get(i, part), x) for i, (part, x) in enumerate(zip(parts, xs, strict=True))
    ]


def vector_bytes(xs: Sequence[Any]) -> list[int]:
    """The sizes of those vectors."""
    parts = [jax.eval_shape(widened, x) for x in xs]
    return [sum(parts[i].size * parts[i].dtype.itemsize for i in mine) for mine in _vectors(parts)]


def widened(x: Any) -> jax.Array:
    """`x` in a type that means are taken in; a narrow float is summed in a wider one anyway."""
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return jnp.stack([x.real, x.imag])
    return x if x.dtype in (jnp.float32, jnp.float64) else x.astype(jnp.float32)


def narrowed(mean: jax.Array, like: jax.Array) -> jax.Array:
    """The mean of `widened(like)` in the type of `like`."""
    if jnp.issubdtype(like.dtype, jnp.complexfloating):
        return jax.lax.complex(mean[0], mean[1])
    return mean.astype(like.dtype)


def _vectors(parts: Sequence[Any]) -> list[list[int]]:
    """The arrays that each vector has, by their numbers; those of no size are in none."""
    found: dict[str, list[int]] = {}
    for i, part in enumerate(parts):
        if part.size:
            found.setdefault(str(part.dtype), []).append(i)
    return [found[dtype] for dtype in sorted(found)]
