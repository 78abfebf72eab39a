"""Arrays on their way through the memory of the host: random keys as the numbers they are."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def is_key(x: Any) -> bool:
    """Whether an array, or the description of one, is of random keys."""
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def to_host(x: Any) -> np.ndarray:
    """An array as numpy has it; on a CPU without a copy."""
    return np.asarray(jax.random.key_data(x) if is_key(x) else x)


def from_host(x: np.ndarray, like: Any) -> Any:
    """The inverse of `to_host`, given a description of the array."""
    return with_impl(x, like) if is_key(like) else x


def with_impl(data: Any, like: Any) -> jax.Array:
    """The random keys of which these are the numbers."""
    impl = jax.random.key_impl(jnp.empty((), like.dtype))
    return jax.random.wrap_key_data(jnp.asarray(data), impl=impl)


def host_spec(like: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """The shape and dtype that an array has on the host."""
    if is_key(like):
        like = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(like.shape, like.dtype))
    return like.shape, np.dtype(like.dtype)
