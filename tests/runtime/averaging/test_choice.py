"""Replicas measure the ways to average, use one of them, and end each other's waits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hocket.errors import PlanError
from hocket.runtime.averaging import Space
from hocket.runtime.averaging.choice import Offer, Reduction
from hocket.runtime.averaging.table import choose
from hocket.system.shared_memory import MemoryFile
from tests.runtime.averaging.replicas import APART, FOUR, TWO, Replicas, asked, expected


@pytest.mark.parametrize(("names", "wanted"), [(FOUR, "shm"), (APART, "nccl"), (FOUR, "hier")])
def test_every_way_gives_the_mean(names: list[str], wanted: str, tmp_path: Path) -> None:
    results = Replicas("means", names, wanted, tmp_path).results()
    for one in results:
        assert not isinstance(one, str), one
        np.testing.assert_array_equal(one[0], results[0][0])  # the same bits everywhere
        np.testing.assert_array_equal(one[1], results[0][1])
        for values, right in zip(one[:2], expected(len(names)), strict=True):
            np.testing.assert_allclose(values, right, atol=1e-4)
        assert one[2] >= 40


def test_replicas_measure_every_way_and_use_the_one_they_are_told(tmp_path: Path) -> None:
    results = Replicas("measured", FOUR, "", tmp_path).results()
    for costs, (x, _, calls) in results:
        assert set(costs) == {"shm", "hier"}
        assert all(isinstance(cost, float) and cost > 0 for cost in costs.values()), costs
        np.testing.assert_allclose(x, expected(4)[0], atol=1e-4)
        assert calls >= 80, "a mean and its way back are two calls"
    table = choose(asked(FOUR), {way: [c[way] for c, *_ in results] for way in ("shm", "hier")})
    slowest = {way: max(costs[way] for costs, _ in results) for way in ("shm", "hier")}
    assert table.chosen == min(slowest, key=lambda way: slowest[way])


def test_a_measurement_without_the_others_ends(tmp_path: Path) -> None:
    (costs,) = Replicas("measured_alone", FOUR, "", tmp_path, only=(1,)).results()
    assert set(costs) == {"shm", "hier"}
    assert all("another replica has ended" in why for why in costs.values()), costs


def test_a_measurement_can_be_closed(tmp_path: Path) -> None:
    (costs,) = Replicas("measured_and_left", FOUR, "", tmp_path, only=(1,)).results()
    assert set(costs) == {"shm", "hier"}
    assert all("another replica has ended" in why for why in costs.values()), costs


@pytest.mark.parametrize(("names", "wanted"), [(FOUR, "shm"), (FOUR, "hier")])
def test_close_ends_the_waits_of_all_steps(names: list[str], wanted: str, tmp_path: Path) -> None:
    """Replicas 0 and 1 of one device wait for the leader of the other, and for their own."""
    replicas = Replicas("closed", names, wanted, tmp_path, only=(0, 1))
    for error in replicas.results():
        assert "another replica has ended" in error


def test_who_cannot_listen_is_told_to_all() -> None:
    """In a trial the next way follows. If the way was asked for by name, the run ends."""
    averaging = asked(TWO, "shm")
    space = Space(MemoryFile.create(averaging.nbytes), 0, averaging.nbytes)
    reduction = Reduction(averaging, 0, space)
    mine = reduction.listen("shm", is_trial=False)
    there = [mine, Offer(why_not="there is no memory")]
    assert reduction.measure("shm", there) == "there is no memory (in replica 1)"
    reduction.listen("shm", is_trial=False)
    with pytest.raises(
        PlanError, match=r"cannot use `shm` here: there is no memory \(in replica"
    ):
        reduction.join("shm", there)
