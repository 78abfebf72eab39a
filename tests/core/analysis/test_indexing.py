"""Reading and writing at indices: right row by row along the environments, else local."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from hocket.core.analysis.kinds import UNIFORM, Kind
from tests.core.analysis.walked import MEAN, PER_ENV, SUM, Array, kind_of

X = Array(PER_ENV, ("n", 3))
TABLE = Array(UNIFORM, (6, 3))
AT = Array(UNIFORM, (), jnp.int32)
EACH = Array(PER_ENV, ("n",), jnp.int32)
MEANS = Array(MEAN, (), jnp.int32)


# Reading


def test_each_environment_looks_up_in_its_own_row() -> None:
    assert kind_of(lambda x, i: jax.vmap(lambda row, k: row[k])(x, i), X, EACH) == PER_ENV
    taken = kind_of(lambda x, i: jnp.take_along_axis(x, i[:, None], 1), X, EACH)
    assert taken == PER_ENV


def test_each_environment_looks_up_in_a_table_for_all() -> None:
    assert kind_of(lambda table, i: table[i], TABLE, EACH) == PER_ENV


def test_the_same_column_of_all_environments_is_theirs() -> None:
    assert kind_of(lambda x, i: jnp.take(x, i, 1), X, AT) == PER_ENV
    column = kind_of(lambda x, i: lax.dynamic_slice_in_dim(x, i, 1, axis=1), X, AT)
    assert column == PER_ENV


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, i: x[i],
        lambda x, i: lax.dynamic_slice_in_dim(x, i, 2),
        lambda x, i: jnp.take(x, jnp.array([0, 1]) + i, 0),
    ],
)
def test_a_choice_among_environments_is_local(fn: Any) -> None:
    assert kind_of(fn, X, AT).tag == "local"


def test_a_part_of_the_environments_is_local_also_if_it_grows_with_them() -> None:
    """The first half of a replica's share is not a share of the first half of all."""
    kind = kind_of(lambda x: lax.dynamic_slice(x, (0, 0), (x.shape[0] // 2, 3)), X)
    assert "picks among environments" in kind.why


def test_an_index_that_is_a_mean_of_a_replica_is_local() -> None:
    assert "before it is averaged" in kind_of(lambda table, i: table[i], TABLE, MEANS).why
    sliced = kind_of(lambda table, i: lax.dynamic_slice_in_dim(table, i, 2), TABLE, MEANS)
    assert "before it is averaged" in sliced.why


def test_an_index_for_each_environment_cannot_cut_one_slice() -> None:
    kind = kind_of(lambda x, i: lax.dynamic_slice_in_dim(x, i[0], 1, axis=1), X, EACH)
    assert kind.tag == "local"


# Writing


def test_each_environment_writes_into_its_own_row() -> None:
    written = kind_of(lambda x, i: jax.vmap(lambda row, k: row.at[k].set(1.0))(x, i), X, EACH)
    assert written == PER_ENV


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, i: x.at[:, i].set(x[:, 0]),
        lambda x, i: x.at[:, i].add(x[:, 0]),
        lambda x, i: x.at[:, i].multiply(x[:, 0]),
        lambda x, i: lax.dynamic_update_slice_in_dim(x, x[:, :1], i, axis=1),
    ],
)
def test_all_environments_are_written_at_one_column(fn: Any) -> None:
    assert kind_of(fn, X, AT) == PER_ENV


def test_a_slice_of_the_environments_cannot_be_replaced() -> None:
    kind = kind_of(lambda x: lax.dynamic_update_slice(x, jnp.zeros((2, 3)), (0, 0)), X)
    assert "picks among environments" in kind.why


def test_rows_added_up_in_a_table_of_zeros_are_a_sum_over_environments() -> None:
    counted = kind_of(lambda i: jnp.zeros(6).at[i].add(1.0), EACH)
    assert counted == SUM
    assert kind_of(lambda x, i: jnp.zeros((6, 3)).at[i].add(x), X, EACH) == SUM
    assert kind_of(lambda t, x, i: t.at[i].add(x), TABLE, X, EACH).tag == "local"


@pytest.mark.parametrize("verb", ["set", "multiply", "max"])
def test_rows_written_into_one_table_are_local(verb: str) -> None:
    kind = kind_of(lambda x, i: getattr(jnp.zeros((6, 3)).at[i], verb)(x), X, EACH)
    assert kind.tag == "local"


def test_a_table_that_all_share_stays_so() -> None:
    assert kind_of(lambda t, i: t.at[i].set(0.0), TABLE, AT) == UNIFORM
    mean = Array(MEAN, (3,))
    assert kind_of(lambda t, i, m: t.at[i].add(m), TABLE, AT, mean) == Kind("partial")
    assert kind_of(lambda t, i, m: t.at[i].multiply(m), TABLE, AT, mean).tag == "local"
