"""Conversion between arrays of a device and numpy arrays, in which random keys are integers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def is_key(x: Any) -> bool:
    """Return True for an array of random keys, or for the shape and dtype of such an array."""
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def to_host(x: Any) -> np.ndarray:
    """Return an array as a numpy array. If it is on a CPU, this makes no copy."""
    return np.asarray(jax.random.key_data(x) if is_key(x) else x)


def from_host(x: Any, like: Any) -> Any:
    """Undo `to_host`, given an array or a spec `like` the original. This works under `jit`, too."""
    return with_impl(x, like) if is_key(like) else x


def with_impl(data: Any, like: Any) -> jax.Array:
    """Return random keys with these key data, and the PRNG implementation of `like`."""
    impl = jax.random.key_impl(jnp.empty((), like.dtype))
    return jax.random.wrap_key_data(jnp.asarray(data), impl=impl)


def host_spec(like: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and dtype of the numpy array that `to_host` makes of an array."""
    if is_key(like):
        like = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(like.shape, like.dtype))
    return like.shape, np.dtype(like.dtype)
