"""The arrays of a call as one vector of each type that is averaged."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hocket.runtime.averaging.vectors import narrowed, through_vectors, vector_bytes, widened

MIXED: list[Any] = [
    jnp.arange(6.0).reshape(2, 3), jnp.float32(7), jnp.ones((0, 4)), jnp.full(3, 2, jnp.bfloat16),
    jnp.array([1 + 2j, 3 - 4j], jnp.complex64),
]  # fmt: skip


def test_all_arrays_of_a_type_are_one_vector() -> None:
    seen: list[jax.Array] = []

    def tenfold(flat: jax.Array) -> jax.Array:
        seen.append(flat)
        return 10 * flat

    means = through_vectors(tenfold, MIXED)
    (flat,) = seen
    np.testing.assert_array_equal(flat, [*range(6), 7, 2, 2, 2, 1, 3, 2, -4])
    assert vector_bytes(MIXED) == [flat.nbytes]
    for mean, x in zip(means, MIXED, strict=True):
        assert (mean.shape, mean.dtype) == (x.shape, x.dtype)
        np.testing.assert_array_equal(mean, 10 * x)


def test_wide_numbers_are_a_vector_of_their_own() -> None:
    with jax.enable_x64(True):
        xs = [jnp.ones(3, jnp.float64), jnp.ones(2, jnp.float32), jnp.ones(1, jnp.float64)]
        sizes: list[Any] = []
        means = through_vectors(lambda x: sizes.append((str(x.dtype), x.size)) or -x, xs)
        assert sorted(sizes) == [("float32", 2), ("float64", 4)]
        assert sorted(vector_bytes(xs)) == [8, 32]
        assert [str(x.dtype) for x in means] == ["float64", "float32", "float64"]
        assert all((x == -1).all() for x in means)


def test_nothing_to_average_calls_nobody() -> None:
    empty = [jnp.ones((0, 4)), jnp.ones(0, jnp.bfloat16)]
    assert vector_bytes(empty) == vector_bytes([]) == []

    def never(flat: jax.Array) -> jax.Array:
        raise AssertionError("called")

    means = through_vectors(never, empty)
    assert [(x.shape, x.dtype) for x in means] == [((0, 4), jnp.float32), ((0,), jnp.bfloat16)]


@pytest.mark.parametrize("x", MIXED, ids=lambda x: str(x.dtype))
def test_a_narrow_type_is_averaged_in_a_wider_one(x: jax.Array) -> None:
    wide = widened(x)
    assert wide.dtype == jnp.float32
    back = narrowed(wide, x)
    assert (back.shape, back.dtype) == (x.shape, x.dtype)
    np.testing.assert_array_equal(back, x)
