"""The walk over two traces of a program: into loops, branches and calls, and over constants."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hocket import PlanError, averaged, fragment
from hocket.core.analysis.equations import constant
from hocket.core.analysis.kinds import UNIFORM, ZERO, Kind
from tests.core.analysis.walked import MEAN, PER_ENV, Array, kind_of, kinds_of
from tests.core.plans import WHOLE, checked
from tests.toys import Toy

X = Array(PER_ENV, ("n", 3))
STEPS = Array(Kind("per_env", axis=1, outer=1), (5, "n"))


@pytest.mark.parametrize(
    ("fused", "share", "kind"),
    [
        (3.0, 3.0, UNIFORM),
        (0, 0, ZERO),
        (np.nan, np.nan, UNIFORM),
        (8, 4, Kind("uniform", degree=1)),
        (1 / 8, 1 / 4, Kind("uniform", degree=-1)),
        (64.0, 16.0, Kind("uniform", degree=2)),
        (np.arange(3), np.arange(3), UNIFORM),
    ],
)
def test_a_constant_is_known_by_its_two_values(fused: Any, share: Any, kind: Kind) -> None:
    assert constant(fused, share, 0.5) == kind


@pytest.mark.parametrize(
    ("fused", "share", "why"),
    [
        (8, 5, "depends on the number of environments"),
        (np.arange(3), np.arange(1, 4), "depends on the number of environments"),
        (np.arange(8), np.arange(4), "a constant has an environment axis"),
    ],
)
def test_any_other_constant_is_local(fused: Any, share: Any, why: str) -> None:
    assert why in constant(fused, share, 0.5).why


def test_a_loop_over_time_keeps_environments() -> None:
    def summed(xs: Any) -> Any:
        return lax.scan(lambda c, x: (c + x, c * x), jnp.zeros(xs.shape[1]), xs)

    assert kinds_of(summed, [STEPS]) == [PER_ENV, STEPS.kind]


def test_a_loop_through_the_environments_is_local() -> None:
    def summed(x: Any) -> Any:
        return lax.scan(lambda c, row: (c + row, None), jnp.zeros(3), x)[0]

    assert "`scan` at test_equations.py:" in kind_of(summed, X).why


def test_what_a_loop_carries_has_one_kind_in_all_passes() -> None:
    """It begins as zero, and a pass adds a mean; a later pass would square it."""

    def added(xs: Any) -> Any:
        return lax.scan(lambda c, x: (c + x.mean(), None), 0.0, xs)[0]

    def squared(xs: Any) -> Any:
        return lax.scan(lambda c, x: (c * c + x.mean(), None), 0.0, xs)[0]

    assert kind_of(added, STEPS) == MEAN
    assert kind_of(squared, STEPS).tag == "local"


def test_a_while_loop_is_right_if_each_environment_ends_for_itself() -> None:
    def halved(x: Any) -> Any:
        return lax.while_loop(lambda y: jnp.abs(y).sum() > 1.0, lambda y: y / 2, x)

    assert kind_of(jax.vmap(halved), X) == PER_ENV
    assert kind_of(halved, Array(UNIFORM, (3,))) == UNIFORM
    assert kind_of(halved, X).tag == "local"  # all go on until the last is done


def test_branches_are_joined_under_a_predicate_that_all_share() -> None:
    flag = Array(UNIFORM, (), jnp.bool_)

    def branched(flag: Any, x: Any) -> Any:
        return lax.cond(flag, lambda: x.mean(), lambda: jnp.float32(1.0))

    assert kind_of(branched, flag, X) == MEAN
    local = kind_of(lambda x: lax.cond(x.mean() > 0, lambda: 1.0, lambda: 2.0), X)
    assert "before it is averaged" in local.why


@pytest.mark.parametrize("wrap", [jax.jit, jax.checkpoint, jax.nn.relu])
def test_functions_are_walked_through(wrap: Any) -> None:
    fn = wrap if wrap is jax.nn.relu else wrap(jnp.sin)
    assert kind_of(fn, X) == PER_ENV


def test_programs_that_differ_with_the_number_of_environments_are_local() -> None:
    def more(x: Any) -> Any:
        return jax.jit(lambda y: y * 2 + 1 if x.shape[0] > 4 else y * 2)(x)

    assert "different equations" in kind_of(more, X).why
    other = kind_of(lambda x: x * 2 if x.shape[0] > 4 else x + 2, X)
    assert "`mul` at test_equations.py:" in other.why
    assert "changes with the number of environments" in other.why


class AveragedUnderLocalPredicate(Toy):
    @fragment(role="learn")
    def update(self, w: Any, key: Any, xs: Any) -> Any:
        gradient = jax.grad(self.loss)(w, xs)
        w = lax.cond(xs.mean() > 0, lambda: w - averaged(gradient), lambda: w)
        return w, key, averaged(xs.mean())


class AveragedUnderUniformPredicate(Toy):
    @fragment(role="learn")
    def update(self, w: Any, key: Any, xs: Any) -> Any:
        gradient = jax.grad(self.loss)(w, xs)
        w = lax.cond(averaged(xs.mean()) > 0, lambda: w - averaged(gradient), lambda: w)
        return w, key, averaged(xs.mean())


def test_averaged_under_a_predicate_that_differs() -> None:
    with pytest.raises(PlanError, match=r"`averaged` is inside a `cond`.*wait for the others"):
        checked(AveragedUnderLocalPredicate(), WHOLE)
    checked(AveragedUnderUniformPredicate(), WHOLE)
