"""Replicas measure the ways to average, use one of them, and end each other's waits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hocket.errors import PlanError
from hocket.runtime.averaging import Space, choice
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
    with pytest.raises(PlanError, match=r"cannot use `shm` here: there is no memory \(in replica"):
        reduction.join("shm", there)


class StandIn:
    """A way by which two replicas average in one process; with `error`, their mean is wrong."""

    def __init__(self, error: float = 0.0, address: str = "here") -> None:
        self.error, self.address = error, address
        self.log: list[Any] = []

    def listen(self, members: Any, index: int, sites: Any, space: Any) -> StandIn:
        self.log.append(("listen", [len(site) for site in sites], members.delay))
        return self

    def join(self, addresses: Any, epoch: int) -> StandIn:
        self.log.append(("join", addresses, epoch))
        return self

    def __call__(self, *xs: jax.Array) -> list[jax.Array]:
        return [jnp.full(x.shape, 0.5 + self.error, x.dtype) for x in xs]

    def counts(self) -> tuple[int, int, int]:
        return 1, 2, 3

    def check(self) -> None:
        self.log.append("check")

    def close(self) -> None:
        self.log.append("close")

    def free(self) -> None:
        self.log.append("free")


def reduction_by(way: StandIn, monkeypatch: pytest.MonkeyPatch) -> Reduction:
    monkeypatch.setattr(choice, "find_way", lambda name: way)
    members = replace(asked(TWO).members, delay=0.25)
    return Reduction(replace(asked(TWO), members=members), 0, None)


def test_a_trial_is_of_the_largest_call_without_a_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    way = StandIn()
    reduction = reduction_by(way, monkeypatch)
    mine = reduction.listen("way", is_trial=True)
    assert mine == Offer("here")
    assert isinstance(reduction.measure("way", [mine, Offer("there")], epoch=2), float)
    assert way.log == [
        ("listen", [1], 0.0), ("join", ["here", "there"], 2), "check", "check", "free",
    ]  # fmt: skip
    reduction.close()
    assert way.log[-1] == "free"  # no trial is left to close


def test_wrong_numbers_are_a_failure_that_ends_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    way = StandIn(error=0.2)
    reduction = reduction_by(way, monkeypatch)
    both = [reduction.listen("way", is_trial=True)] * 2
    why = "failed: a trial gave a wrong mean of the numbers 0 to 1: it must be 0.5"
    assert reduction.measure("way", both) == why
    assert way.log[-1] == "close"  # so that the others do not wait


def test_the_way_in_use_averages_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    way = StandIn()
    reduction = reduction_by(way, monkeypatch)
    reduction.join("way", [reduction.listen("way", is_trial=False)] * 2, epoch=4)
    # Every site is given twice, because XLA may copy one.
    assert way.log == [("listen", [1] * 4, 0.25), ("join", ["here"] * 2, 4)]
    assert [float(x) for x in reduction(jnp.float32(3))] == [0.5]
    assert reduction.counts() == (1, 2, 3)
    reduction.check()
    reduction.close()
    assert way.log[-2:] == ["check", "close"]


def test_who_joins_after_the_end_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    way = StandIn()
    reduction = reduction_by(way, monkeypatch)
    both = [reduction.listen("way", is_trial=False)] * 2
    reduction.close()
    assert reduction.measure("way", both) == "another replica has ended"
    reduction.join("way", both)
    assert way.log[-1] == "close"


def test_who_listens_alone_lets_go_of_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    way = StandIn()
    reduction = reduction_by(way, monkeypatch)
    mine = reduction.listen("way", is_trial=True)
    there = [mine, Offer(why_not="no driver")]
    assert reduction.measure("way", there) == "no driver (in replica 1)"
    assert way.log[1:] == ["close"]
