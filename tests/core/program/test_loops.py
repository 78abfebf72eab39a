"""`has_loops` sees what XLA would see: the loops of the implementation that a program gets."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl

from hocket.core.program.backend import backend, swappable
from hocket.core.program.loops import has_loops

X = jnp.ones(4)


def scanned(x: Any) -> Any:
    return lax.scan(lambda c, _: (c * 2, None), x, None, 3)[0]


@pytest.mark.parametrize(
    "fn",
    [
        scanned,
        lambda x: lax.while_loop(lambda y: y.sum() < 9, lambda y: 2 * y, x),
        lambda x: lax.fori_loop(0, 3, lambda _, y: 2 * y, x),
        jax.jit(lambda x: lax.cond(x[0] > 0, scanned, jnp.sin, x)),
        jax.vmap(lambda x: scanned(x)),
    ],
)
def test_a_loop_is_seen_at_any_depth(fn: Any) -> None:
    assert has_loops(fn, X)


def test_without_a_loop_there_is_none() -> None:
    assert not has_loops(lambda x: jnp.sin(x @ x), X)
    assert not has_loops(jax.jit(lambda x: lax.cond(x[0] > 0, jnp.cos, jnp.sin, x)), X)


def test_a_swappable_function_counts_as_its_chosen_implementation() -> None:
    function = swappable("looping")(lambda _, x: (scanned(x),))
    function.register("flat", lambda _, x: (8 * x,), platforms=["cpu"])
    assert has_loops(lambda x: function(None, x), X)
    with backend("flat"):
        assert not has_loops(lambda x: function(None, x), X)


def test_the_loops_in_a_kernel_are_its_own() -> None:
    def kernel(x: Any, out: Any) -> None:
        out[:] = scanned(x[:])

    spec = jax.ShapeDtypeStruct(X.shape, X.dtype)
    assert not has_loops(pl.pallas_call(kernel, out_shape=spec), X)
