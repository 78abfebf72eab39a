"""Several shards draw rows as one table would."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket.replay import Client, connect
from hocket.replay.store.server import serve
from hocket.replay.store.shards import Shards
from hocket.replay.store.table import Table

CAPACITY = 1_024


def filled(priority: np.ndarray, num: int) -> tuple[list[Table], Shards]:
    """Numbered rows, in shards with very different totals."""
    tables = [Table("x:int32", CAPACITY // num, seed=k) for k in range(num)]
    for k, part in enumerate(np.split(np.arange(CAPACITY), num)):
        tables[k].insert({"x": part.astype(np.int32)}, priority[part])
    return tables, Shards(tables, CAPACITY, seed=9)


def chi_square(counts: np.ndarray, wanted: np.ndarray) -> float:
    """The chi-square statistic of frequencies, in standard deviations from its mean."""
    keep = wanted > 0
    value = ((counts[keep] - wanted[keep]) ** 2 / wanted[keep]).sum()
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
    share, draws = priority / priority.sum(), 300_000
    counts = np.zeros(CAPACITY)
    # In small batches, because the rows of large ones are spread more evenly than by chance.
    for _ in range(draws // 4):
        batch = shards.sample(4)
        np.add.at(counts, batch.rows["x"], 1)
    assert counts[::10].sum() == 0
    assert -8.0 < chi_square(counts, share * draws) < 4.0
    # The same test rejects shards that are drawn from equally often.
    wrong = np.concatenate([part / part.sum() / 4 for part in np.split(priority, 4)])
    assert chi_square(counts, wrong * draws) > 100.0


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
    assert slots == set(batch.rows["x"].tolist())  # the rows that were inserted, slot by slot
    for k, table in enumerate(tables):
        now = table.contents()
        mine = {slot % 256 for slot in slots if slot // 256 == k}
        assert set(now.keys[now.priority == 5.0, 0].tolist()) == mine
    tables[0].insert({"x": np.zeros(256, np.int32)})  # all its rows are overwritten
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


# At servers


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[list[Client]]:
    tables, _ = filled(priorities(), 4)
    with ExitStack() as stack:
        servers = [serve(x, unix=tmp_path / f"shard-{k}") for k, x in enumerate(tables)]
        connected = [connect(stack.enter_context(server).address) for server in servers]
        yield [stack.enter_context(client) for client in connected]


def test_all_servers_are_asked_at_once(
    clients: list[Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And never for what they have reported already, so a batch takes one round trip."""
    said: list[str] = []

    def listened(client: Client) -> None:
        ask, info = client.ask, client.info

        def asked(num: int, **options: Any) -> Any:
            said.append("ask")
            take = ask(num, **options)
            return lambda: (said.append("take"), take())[1]

        monkeypatch.setattr(client, "ask", asked)
        monkeypatch.setattr(client, "info", lambda: (said.append("info"), info())[1])

    for client in clients:
        listened(client)
    shards = Shards(clients, CAPACITY)
    shards.sample(4_096)
    assert said == ["info"] * 4 + ["ask"] * 4 + ["take"] * 4
    said.clear()
    shards.sample(4_096)
    assert said == ["ask"] * 4 + ["take"] * 4
    shards.sample(1, uniforms=[0.9])  # from the last shard
    said.clear()
    shards.sample(4_096)
    assert said == ["info"] * 3 + ["ask"] * 4 + ["take"] * 4


def test_a_server_that_was_empty_is_drawn_from(clients: list[Client]) -> None:
    clients[3].clear()
    shards = Shards(clients, CAPACITY)
    assert 3 not in shards.sample(512).keys[:, 0] // 256
    clients[3].insert({"x": np.arange(4, dtype=np.int32)}, np.full(4, 100.0))
    assert 3 in shards.sample(512).keys[:, 0] // 256


def test_rows_are_drawn_as_often_as_their_probability_says(clients: list[Client]) -> None:
    """While priorities change between batches, so that the reported totals are always old."""
    shards, rng = Shards(clients, CAPACITY, seed=9), np.random.default_rng(1)
    keys = np.stack([np.arange(CAPACITY), np.ones(CAPACITY)], 1).astype(np.uint32)
    batches, num = 2_000, 512
    estimate, variance = np.zeros(CAPACITY), np.zeros(CAPACITY)
    for _ in range(batches):
        scale = np.repeat(rng.choice([0.3, 1.0, 4.0], 4), CAPACITY // 4)
        assert shards.update(keys, scale * rng.uniform(0.5, 2.0, CAPACITY)) == 0
        batch = shards.sample(num)
        weight = 1.0 / (num * batch.probability.astype(np.float64))
        np.add.at(estimate, batch.keys[:, 0], weight)  # each row counts 1 on average
        np.add.at(variance, batch.keys[:, 0], weight**2)
    off = (estimate - batches) / np.sqrt(variance)
    assert np.abs(off).max() < 5.0 and np.abs(off.mean()) < 0.1
    by_shard = estimate.reshape(4, -1).mean(1) / batches
    np.testing.assert_allclose(by_shard, 1.0, atol=5e-3)
