"""Walks over equations: what is in them at any depth, how often it runs, and who wrote it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.extend.core import JaxprEqn

from hocket import fragment
from hocket.core.graph.walk import (
    count_calls,
    equations,
    label_of,
    labels_of,
    named_by,
    scan_sizes,
    source_line,
)
from hocket.core.program.backend import swappable, swappable_p
from tests.core.tiny import act, env, learn

X = jnp.ones(4)


def program(fn: Any, *args: Any) -> Any:
    return jax.make_jaxpr(lambda *xs: fn(*xs))(*(args or (X,))).jaxpr


def only(fn: Any, name: str) -> JaxprEqn:
    (eqn,) = [eqn for eqn in program(fn).eqns if eqn.primitive.name == name]
    return eqn


def thrice(fn: Any) -> Any:
    return lambda x: lax.scan(lambda c, _: (fn(c), None), x, None, 3)[0]


def test_an_equation_names_the_line_of_the_user() -> None:
    def written_here(x: Any) -> Any:
        return jnp.sin(x)

    line = written_here.__code__.co_firstlineno + 1
    where = source_line(only(written_here, "sin"))
    assert where == f"test_walk.py:{line} (written_here)"
    assert source_line(only(act, "jit")).startswith("test_walk.py:")  # the call, not the fragment


def test_the_first_inputs_of_a_scan_are_constants_then_what_it_carries() -> None:
    def loop(x: Any) -> Any:
        return lax.scan(lambda c, row: ((c[0] + row * x, c[1] + x), row), (x, x), x)

    (eqn,) = [eqn for eqn in program(loop).eqns if eqn.primitive.name == "scan"]
    assert scan_sizes(eqn.params) == (1, 2) and len(eqn.invars) == 4
    assert scan_sizes(only(thrice(jnp.sin), "scan").params) == (0, 1)


def test_labels_are_those_of_the_outer_fragments() -> None:
    outer = fragment(role="learn", name="outer")(lambda x: act(env(x, x)))
    assert [label.name for label in labels_of(only(outer, "jit"))] == ["outer"]
    looped = only(thrice(lambda x: learn(x, act(x))), "scan")
    assert label_of(looped) is None
    assert [label.role for label in labels_of(looped)] == ["act", "learn"]
    assert not list(labels_of(only(jnp.sin, "sin")))


def test_equations_are_found_at_any_depth() -> None:
    outer = only(thrice(jax.jit(thrice(jnp.sin))), "scan")
    names = [eqn.primitive.name for eqn in equations(outer)]
    assert names == ["scan", "jit", "scan", "sin"]


def test_calls_of_a_primitive_are_named_by_what_they_call() -> None:
    one, other = (swappable(name)(lambda _, x: (2 * x,)) for name in ("one", "other"))
    called = thrice(lambda x: one(None, other(None, one(None, x)[0])[0])[0])
    assert list(named_by(swappable_p, only(called, "scan"))) == [one, other, one]
    assert not list(named_by(swappable_p, only(jnp.sin, "sin")))


@pytest.mark.parametrize(
    ("fn", "count"),
    [
        (lambda x: act(act(x)), 2),
        (lambda x: learn(x, x), 0),
        (thrice(thrice(act)), 9),
        (lambda x: thrice(act)(act(x)), 4),
        # Only one branch runs: the most that one run may have.
        (lambda x: lax.cond(x[0] > 0, thrice(act), act, x), 3),
        (lambda x: jax.vmap(act)(x), 1),
    ],
)
def test_calls_are_counted_as_often_as_they_run(fn: Any, count: int) -> None:
    assert count_calls(program(fn), "act") == count


def test_a_fragment_around_others_of_its_role_is_as_many_as_they_are() -> None:
    outer = fragment(role="act", name="outer")(thrice(act))
    assert count_calls(program(outer), "act") == 3
    assert count_calls(program(fragment(role="env", name="world")(thrice(act))), "env") == 1
