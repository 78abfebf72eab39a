"""Kinds and rules alone: what single equations make of the kinds of their inputs."""

from __future__ import annotations

from typing import Any

import pytest

from hocket.core.analysis.kinds import UNIFORM, ZERO, Kind, ShapePair, Site, local
from hocket.core.analysis.rules import apply_rule
from tests.core.analysis.walked import ALL, COUNT, MEAN, PER_ENV, SHARE, SUM

LOCAL = local("the test says so")


def rows(*shape: int) -> ShapePair:
    """Return the shapes of a value with one row for each environment."""
    return ShapePair((ALL, *shape), (SHARE, *shape))


ONE = ShapePair((), ())


def made(name: str, *kinds: Kind, out: ShapePair = ONE, **params: Any) -> Kind:
    ins = [rows() if k.tag == "per_env" else ONE for k in kinds]
    (kind,) = apply_rule(kinds, Site(name, params, ins, [out], "here", floats=True))
    return kind


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("neg", (MEAN,)),
        ("add", (MEAN, UNIFORM)),
        ("sub", (MEAN, MEAN)),
        ("mul", (UNIFORM, MEAN)),
        ("div", (MEAN, UNIFORM)),
        ("select_n", (UNIFORM, MEAN, MEAN)),
    ],
)
def test_a_partial_value_may_be_used_linearly(name: str, kinds: tuple[Kind, ...]) -> None:
    assert made(name, *kinds) == MEAN


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("square", (MEAN,)),
        ("integer_pow", (MEAN,)),
        ("exp", (MEAN,)),
        ("mul", (MEAN, MEAN)),
        ("div", (UNIFORM, MEAN)),
        ("gt", (MEAN, UNIFORM)),
        ("select_n", (MEAN, UNIFORM, UNIFORM)),
    ],
)
def test_a_partial_value_may_not_be_squared(name: str, kinds: tuple[Kind, ...]) -> None:
    """Replicas with the means 1 and 3: the fused square is 4, and the mean of their squares 5."""
    kind = made(name, *kinds)
    assert kind.tag == "local"
    assert "wrap the mean in `averaged(...)`" in kind.why


def test_once_averaged_it_may_be_squared() -> None:
    assert made("averaged", MEAN) == UNIFORM
    assert made("square", made("averaged", MEAN)) == UNIFORM


@pytest.mark.parametrize("name", ["add", "mul"])
def test_a_partial_value_may_not_meet_environments_before_it_is_averaged(name: str) -> None:
    assert made(name, PER_ENV, MEAN, out=rows()).tag == "local"
    assert made(name, PER_ENV, UNIFORM, out=rows()) == PER_ENV


def test_a_sum_divided_by_the_number_of_environments_is_a_mean() -> None:
    assert made("reduce_sum", PER_ENV, axes=(0,)) == SUM
    assert made("div", SUM, COUNT) == MEAN
    assert "divide by it" in made("averaged", SUM).why
    assert "adds a sum over environments to others" in made("add", SUM, MEAN).why


def test_a_maximum_over_environments_is_local() -> None:
    assert made("reduce_max", PER_ENV, axes=(0,)).tag == "local"


def test_zero_has_every_degree() -> None:
    assert made("add", ZERO, SUM) == SUM
    assert made("add", ZERO, MEAN) == MEAN


def test_the_number_of_environments_may_only_scale() -> None:
    assert made("mul", COUNT, UNIFORM) == COUNT
    assert "smaller in a replica" in made("exp", COUNT).why


def test_a_primitive_without_a_rule_makes_a_local_value() -> None:
    name = "a primitive of tomorrow"
    for kind in (MEAN, LOCAL):
        assert made(name, kind).tag == "local"
    assert "not known to keep environments apart" in made(name, PER_ENV, out=rows()).why


def test_whatever_it_computes_from_uniform_values_is_uniform() -> None:
    name = "a primitive of tomorrow"
    assert made(name, UNIFORM, UNIFORM) == UNIFORM
    assert made(name, UNIFORM, out=rows()).tag == "local"  # it makes rows for environments


@pytest.mark.parametrize("name", ["neg", "add", "mul", "exp", "averaged"])
def test_nothing_mends_a_local_value(name: str) -> None:
    kinds = (LOCAL, UNIFORM) if name in ("add", "mul") else (LOCAL,)
    assert made(name, *kinds) == LOCAL


def test_the_shapes_are_a_second_opinion_on_every_rule() -> None:
    """A linear rule keeps the environment axis, and here the output has none."""
    assert made("neg", PER_ENV, out=ONE).tag == "local"
