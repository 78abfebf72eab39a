from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hocket import averaged
from hocket.core.program.averaged import ReplicaAxis, averaging

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


def test_a_tree_is_one_equation() -> None:
    tree = {"a": X, "b": (X[0], 2.0), "none": ()}
    program = jax.make_jaxpr(averaged)(tree)
    assert [e.primitive.name for e in program.eqns] == ["averaged"]
    assert averaged(()) == ()


def test_the_gradient_of_a_leaf_alone() -> None:
    """Here the other leaf has neither a cotangent nor a tangent."""

    def loss(tree: Any) -> Any:
        mean = averaged({**tree, "fixed": X[1]})
        return (mean["a"] * mean["fixed"]).sum()

    gradient = jax.jit(jax.grad(loss))({"a": X[0], "b": X[0]})
    np.testing.assert_allclose(gradient["a"], X[1])
    np.testing.assert_allclose(gradient["b"], 0)


def test_whole_numbers_are_refused() -> None:
    with pytest.raises(TypeError, match="floating point; found int32"):
        averaged({"a": X, "steps": jnp.arange(3)})


def test_within_a_context_it_is_what_the_context_says() -> None:
    calls: list[int] = []

    def doubled(*xs: Any) -> list[Any]:
        calls.append(len(xs))
        return [2 * x for x in xs]

    fn = jax.jit(lambda x: averaged({"a": x, "b": averaged(x)})["b"])
    assert fn(3.0) == 3.0
    outside = fn.lower(3.0).as_text()
    with averaging(doubled):
        assert fn(3.0) == 12.0
        assert fn(4.0) == 16.0
        assert fn.lower(3.0).as_text() != outside
    assert calls == [1, 2]  # one call for each equation
    assert fn(3.0) == 3.0
    assert fn.lower(3.0).as_text() == outside


def test_equations_of_the_same_shapes_are_lowered_each() -> None:
    calls: list[float] = []

    def counted(x: Any) -> list[Any]:
        calls.append(1)
        return [x + len(calls)]

    with averaging(counted):
        assert jax.jit(lambda x: averaged(x) + averaged(x))(0.0) == 1 + 2
