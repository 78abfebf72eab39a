"""Swappable functions: one equation, whose implementation is chosen when it is lowered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hocket import Place, Plan, PlanError, trace
from hocket.core.graph.walk import named_by
from hocket.core.plan.checks import check
from hocket.core.program.backend import backend, swappable, swappable_p
from tests.toys import Toy

X, V = jnp.arange(6.0).reshape(2, 3), jnp.ones((2, 3))


@dataclass(frozen=True)
class Spring:
    stiffness: float = 0.5

    @swappable("spring")
    def dynamics(self, x: Any, v: Any) -> tuple[Any, Any]:
        return x + v, v - self.stiffness * jnp.sin(x)


def wrong_on_purpose(spring: Spring, x: Any, v: Any) -> tuple[Any, Any]:
    """Return wrong numbers, so that a test sees which implementation ran."""
    return x + 100 * spring.stiffness, v


Spring.dynamics.register("wrong", wrong_on_purpose, platforms=["cpu"])
Spring.dynamics.register("elsewhere", wrong_on_purpose, platforms=["gpu"])


def plain(x: Any, v: Any) -> tuple[Any, Any]:
    return x + v, v - 0.5 * jnp.sin(x)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_it_is_the_function_itself(wrap: Any) -> None:
    for array, expected in zip(wrap(Spring().dynamics)(X, V), wrap(plain)(X, V), strict=True):
        np.testing.assert_array_equal(array, expected)


def test_the_default_is_compiled_as_if_it_were_not_there() -> None:
    def opcodes(fn: Any) -> list[str]:
        text = jax.jit(jax.vmap(fn)).lower(X, V).as_text()
        return sorted(line.split()[2] for line in text.splitlines() if " = " in line)

    assert opcodes(lambda x, v: Spring().dynamics(x, v)) == opcodes(plain)


def test_the_choice_is_made_when_lowered_and_never_remembered() -> None:
    fn = jax.jit(lambda x, v: lax.scan(lambda c, _: (Spring().dynamics(*c), None), (x, v), None, 2))
    for _ in range(2):
        x = fn(X, V)[0][0]
        with backend("wrong"):
            np.testing.assert_array_equal(fn(X, V)[0][0], X + 100)
            texts = [fn.lower(X, V).as_text()]
        np.testing.assert_array_equal(fn(X, V)[0][0], x)
        texts.append(fn.lower(X, V).as_text())
        assert ["sine" in text for text in texts] == [False, True]


def test_what_is_traced_says_nothing_of_it() -> None:
    with backend("wrong"):
        inside = str(jax.make_jaxpr(Spring().dynamics)(X, V))
    assert inside == str(jax.make_jaxpr(Spring().dynamics)(X, V))
    assert "wrong" not in inside


def test_where_there_is_no_such_implementation_it_is_jax() -> None:
    other = swappable("other")(lambda _, x: (2 * x,))
    with backend("wrong"):
        np.testing.assert_array_equal(jax.jit(lambda x: other(None, x))(X)[0], 2 * X)


def test_it_batches_along_any_axis() -> None:
    batched = jax.vmap(Spring().dynamics, in_axes=(1, None))(X, V[:, 0])
    expected = jax.vmap(plain, in_axes=(1, None))(X, V[:, 0])
    for a, b in zip(batched, expected, strict=True):
        np.testing.assert_allclose(a, b)


def test_its_derivative_is_that_of_the_jax_function() -> None:
    gradient, expected = (
        jax.grad(lambda x, fn=fn: (fn(x, V)[1] ** 2).sum())(X) for fn in (Spring().dynamics, plain)
    )
    np.testing.assert_allclose(gradient, expected, rtol=1e-6)


def test_settings_that_are_traced_leave_it_to_jax() -> None:
    stiffness = jnp.array([0.1, 0.2])
    fn = jax.vmap(lambda k: Spring(k).dynamics(X, V))
    with backend("wrong"):
        np.testing.assert_allclose(fn(stiffness)[1][1], V - 0.2 * jnp.sin(X), rtol=1e-6)


def test_mistakes() -> None:
    with pytest.raises(ValueError, match="must have one shape, found \\(2, 3\\), \\(3,\\)"):
        Spring().dynamics(X, V[0])
    total = swappable("total")(lambda _, x: (x.sum(),))
    with pytest.raises(ValueError, match="`total` must be elementwise"):
        jax.jit(lambda x: total(None, x))(X)
    with pytest.raises(ValueError, match=r"unknown backend `wrnog`\. Did you mean `wrong`\?"):
        backend("wrnog")
    with backend("elsewhere"), pytest.raises(ValueError, match="`elsewhere` cannot run on cpu"):
        jax.jit(lambda x, v: Spring().dynamics(x, v))(X, V)


class Springs(Toy):
    def noise(self, x: Any, keys: Any) -> Any:
        own = jax.vmap(lambda k: jax.random.normal(k, (4,)))(keys)
        return Spring().dynamics(x, own)[1]


class CoupledSprings(Toy):
    def noise(self, x: Any, keys: Any) -> Any:
        return Spring().dynamics(x, jnp.broadcast_to(x.mean(0), x.shape))[1]


def replicated(algorithm: Toy) -> Plan:
    places = (Place("actor", run=("env", "act"), replicas=2), Place("learner", run=("learn",)))
    return check(Plan(trace(algorithm, 8), places))


def test_replicas_keep_environments_apart_in_it() -> None:
    assert replicated(Springs()).places[0].replicas == 2
    with pytest.raises(PlanError, match="averaged"):
        replicated(CoupledSprings())


def test_a_plan_can_find_them_and_their_backends() -> None:
    nodes = trace(Springs(), 8).nodes
    assert {fn for node in nodes for fn in named_by(swappable_p, node.eqn)} == {Spring.dynamics}
    assert Spring.dynamics.backends == ("jax", "wrong", "elsewhere")
    assert Spring.dynamics.runs_on("elsewhere", "cuda")
    assert not Spring.dynamics.runs_on("elsewhere", "cpu")
    assert Spring.dynamics.runs_on("nobody has it", "tpu")  # JAX's runs anywhere
