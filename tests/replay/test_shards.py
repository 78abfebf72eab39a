"""Several shards draw as one table would."""

from __future__ import annotations

import numpy as np
import pytest

from hocket.replay.shards import Shards
from hocket.replay.table import Table

CAPACITY = 1_024


def filled(priority: np.ndarray, num: int) -> tuple[list[Table], Shards]:
    """Rows that are numbered, in shards of very different totals."""
    tables = [Table("x:int32", CAPACITY // num, seed=k) for k in range(num)]
    for k, part in enumerate(np.split(np.arange(CAPACITY), num)):
        tables[k].insert({"x": part.astype(np.int32)}, priority[part])
    return tables, Shards(tables, CAPACITY, seed=9)


def chi_square(found: np.ndarray, wanted: np.ndarray) -> float:
    """In standard deviations of what it is when the frequencies are right."""
    keep = wanted > 0
    value = ((found[keep] - wanted[keep]) ** 2 / wanted[keep]).sum()
    freedom = keep.sum() - 1
    return float((value - freedom) / np.sqrt(2 * freedom))


def priorities() -> np.ndarray:
    priority = np.random.default_rng(0).exponential(size=CAPACITY) ** 0.6
    priority *= np.repeat([0.01, 1.0, 0.3, 7.0], CAPACITY // 4)
    priority[::10] = 0.0
    return priority.astype(np.float32)


def test_rows_are_drawn_in_proportion_to_their_priority() -> None:
    priority = priorities()
    _, shards = filled(priority, 4)
    share, draws = priority / priority.sum(), 1_000_000
    found = np.zeros(CAPACITY)
    for _ in range(draws // 4):  # in small batches: the larger, the more even they are
        batch = shards.sample(4)
        np.add.at(found, batch.rows["x"], 1)
    assert found[::10].sum() == 0
    assert -8.0 < chi_square(found, share * draws) < 4.0
    # The same test sees shards that are drawn from equally often.
    wrong = np.concatenate([part / part.sum() / 4 for part in np.split(priority, 4)])
    assert chi_square(found, wrong * draws) > 100.0


def test_one_large_batch_is_even() -> None:
    priority = priorities()
    _, shards = filled(priority, 4)
    batch, share = shards.sample(100_000), priority / priority.sum()
    counts = np.bincount(batch.rows["x"], minlength=CAPACITY)
    assert np.abs(counts - 100_000 * share).max() < 3.0
    np.testing.assert_allclose(batch.probability, share[batch.rows["x"]], rtol=1e-4)


def test_updates_reach_their_shard() -> None:
    tables, shards = filled(priorities(), 4)
    batch = shards.sample(64)
    assert shards.update(batch.keys, np.full(64, 5.0)) == 0
    slots = {int(slot) for slot in batch.keys[:, 0]}
    assert slots == set(batch.rows["x"].tolist())  # where rows were put, slot by slot
    for k, table in enumerate(tables):
        now = table.contents()
        mine = {slot % 256 for slot in slots if slot // 256 == k}
        assert set(now.keys[now.priority == 5.0, 0].tolist()) == mine
    tables[0].insert({"x": np.zeros(256, np.int32)})  # all of its rows are others now
    batch = shards.sample(64)
    gone = np.array([[3, 1], [300, 1]], np.uint32)
    assert shards.update(gone, [1.0, 1.0]) == 1


@pytest.mark.parametrize("empty", [0, 1])
def test_a_shard_without_priority_is_left_out(empty: int) -> None:
    priority = np.ones(CAPACITY, np.float32)
    priority[np.split(np.arange(CAPACITY), 2)[empty]] = 0.0
    _, shards = filled(priority, 2)
    batch = shards.sample(512, uniforms=np.full(512, 1.0 - 1e-7))
    assert set(batch.keys[:, 0] // 512) == {1 - empty}
    assert not batch.evenly


def test_without_any_priority_rows_are_drawn_evenly() -> None:
    tables, shards = filled(np.zeros(CAPACITY, np.float32), 4)
    batch = shards.sample(CAPACITY)
    assert batch.evenly
    assert np.bincount(batch.keys[:, 0] // 256).tolist() == [256] * 4
    np.testing.assert_allclose(batch.probability, 1 / CAPACITY)
    assert shards.info()["size"] == sum(len(table) for table in tables) == CAPACITY
