"""Schedules as data, and what follows for a learner and the makers of its samples."""

from __future__ import annotations

import pytest

from hocket import Free, Pair
from hocket.core.plan.schedule import Sampling
from hocket.core.projection.instructions import Transfer, TransferId

PAIR = Pair("learner", "actor", max_age=4)


def test_one_pair_needs_no_list() -> None:
    assert Free(PAIR) == Free([PAIR]) == Free(iter([PAIR]))
    assert Free([PAIR, PAIR]).pairs == (PAIR, PAIR)
    assert str(PAIR) == "learner -> actor"


@pytest.mark.parametrize(
    ("makers", "max_age", "batch", "shares", "window"),
    [(1, 1, 1, 1, 1), (4, 4, 1, 4, 1), (4, 9, 1, 4, 2), (4, 6, 2, 2, 3), (4, 1, 4, 1, 1)],
)
def test_samples_under_way_are_bounded_by_the_age(
    makers: int, max_age: int, batch: int, shares: int, window: int
) -> None:
    sampling = Sampling("learner", "actor", makers, max_age, batch)
    assert (sampling.shares, sampling.window) == (shares, window)
    assert sampling.window * makers <= max_age * batch


@pytest.mark.parametrize(
    ("ends", "version", "any_maker", "sample"),
    [
        (("learner", "actor"), True, False, False),
        (("actor", "learner"), False, True, True),
        (("env", "learner"), False, False, True),
        (("env", "actor"), False, False, False),
    ],
)
def test_transfers_carry_versions_or_parts_of_samples(
    ends: tuple[str, str], version: bool, any_maker: bool, sample: bool
) -> None:
    sampling = Sampling("learner", "actor", 2, 2, 1)
    transfer = Transfer(TransferId(0), *ends, values=(), times=1)
    assert sampling.is_version(transfer) == version
    assert sampling.is_any(transfer) == any_maker
    assert sampling.is_sample(transfer) == sample
