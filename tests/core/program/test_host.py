"""Host functions: one equation when traced, called once or by whoever runs the program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hocket import PlanError
from hocket.core.program.host import HostFunction, Specs, call_host, call_once, calling, host_p
from tests.core.tiny import BoxFunction, Doubled, LiveDoubled

X = np.arange(6, dtype=np.float32).reshape(2, 3)
KEEPER = replace(Doubled(), name="keeper", keeps_state=True)


def test_a_call_is_one_equation() -> None:
    program = jax.make_jaxpr(lambda x: call_host(Doubled(), x, x[0]))(X)
    (equation,) = [eqn for eqn in program.eqns if eqn.primitive is host_p]
    assert equation.params["of"] == Doubled()
    assert [out.aval.shape for out in equation.outvars] == [(2, 3), (3,)]


def test_outside_of_a_program_it_is_opened_for_one_call() -> None:
    closed = LiveDoubled.closed
    (doubled,) = call_host(Doubled(), X)
    np.testing.assert_array_equal(doubled, 2 * X)
    assert LiveDoubled.closed == closed + 1


def test_it_is_closed_also_if_it_fails() -> None:
    closed = LiveDoubled.closed
    with pytest.raises(TypeError):
        call_once(Doubled(), [np.array([object()])])
    assert LiveDoubled.closed == closed + 1


def test_under_vmap_it_is_called_once_with_the_rows_of_all() -> None:
    shapes: list[tuple[int, ...]] = []

    class LiveNoted(LiveDoubled):
        def start(self, arrays: Sequence[np.ndarray]) -> None:
            shapes.extend(x.shape for x in arrays)
            super().start(arrays)

    class Noted(Doubled):
        def open(self, **_: Any) -> LiveDoubled:
            return LiveNoted()

    one, other = jax.vmap(lambda x, y: call_host(Noted(), x, y), in_axes=(1, None))(X, X[:, 0])
    np.testing.assert_array_equal(one, 2 * X.T)
    np.testing.assert_array_equal(other, [2 * X[:, 0]] * 3)
    assert shapes == [(6,), (6,)]


def test_under_vmap_a_service_would_be_several() -> None:
    with pytest.raises(PlanError, match=r"a service keeps one box, and `vmap` would need"):
        jax.vmap(lambda x: call_host(BoxFunction("get"), x, x))(X)


@pytest.mark.parametrize("wrap", [lambda fn: fn, jax.jit])
def test_one_that_keeps_a_state_needs_somebody_who_looks_after_it(wrap: Any) -> None:
    with pytest.raises(ValueError, match=r"keeper runs on the host and keeps a state.*hocket\.run"):
        wrap(lambda x: call_host(KEEPER, x))(X)


class Caller:
    """Calls functions for a program, with ten added."""

    def __call__(self, of: HostFunction, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [x + 10 for x in call_once(Doubled(), arrays)]

    def slot(self, of: HostFunction, ins: Specs, outs: Specs) -> int | None:
        return None


def test_a_program_calls_by_the_caller_that_it_was_lowered_with() -> None:
    program = jax.jit(lambda x: call_host(KEEPER, x)[0])
    with calling(Caller()):
        np.testing.assert_array_equal(program(X), 2 * X + 10)
    with pytest.raises(ValueError, match="keeps a state there"):  # it is another program outside
        program(jnp.asarray(X))
