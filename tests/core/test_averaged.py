from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hocket import averaged
from hocket.core.averaged import ReplicaAxis

X = jnp.arange(8.0).reshape(2, 4)


def test_the_identity_in_one_program() -> None:
    tree = {"a": X, "b": (X[0],)}
    assert jax.tree.all(jax.tree.map(lambda a, b: (a == b).all(), averaged(tree), tree))
    assert (jax.jit(averaged)(X) == X).all()


def test_the_mean_over_replicas() -> None:
    rows = jax.vmap(averaged, axis_name=ReplicaAxis(), out_axes=None)(X)
    np.testing.assert_allclose(rows, X.mean(0))


def test_another_axis_is_only_mapped_over() -> None:
    assert (jax.vmap(averaged, axis_name="seeds")(X) == X).all()
    seeds = jax.vmap(lambda x: jax.vmap(averaged, axis_name=ReplicaAxis(), out_axes=None)(x))(
        jnp.stack([X, 2 * X])
    )
    np.testing.assert_allclose(seeds, jnp.stack([X.mean(0), 2 * X.mean(0)]))


def test_its_derivative_is_itself() -> None:
    np.testing.assert_allclose(jax.grad(lambda x: averaged(x**2))(3.0), 6.0)
    np.testing.assert_allclose(jax.jvp(averaged, (3.0,), (2.0,))[1], 2.0)

    def loss(w: Any, x: Any) -> Any:
        return jnp.square(x @ w - averaged((x @ w).mean())).mean()

    w = jnp.arange(4.0)
    whole = jax.grad(loss)(w, jnp.concatenate([X, -X]))
    parts = jax.vmap(
        lambda x: averaged(jax.grad(loss)(w, x)), axis_name=ReplicaAxis(), out_axes=None
    )(jnp.stack([X, -X]))
    np.testing.assert_allclose(parts, whole, rtol=1e-5)


def test_inside_loops_and_branches() -> None:
    def fn(x: Any) -> Any:
        def body(c: Any, _: None) -> Any:
            return c + averaged(x.mean()), averaged(x.max())

        return jax.lax.scan(body, 0.0, None, 3)[0]

    np.testing.assert_allclose(
        jax.vmap(fn, axis_name=ReplicaAxis(), out_axes=None)(X), 3 * X.mean()
    )
