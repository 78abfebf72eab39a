"""The device replay gives the same as a simple model in numpy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hocket.replay import device
from hocket.replay.device import Replay

CAPACITY = 8

insert, reprioritize = jax.jit(device.insert), jax.jit(device.reprioritize)
sample = jax.jit(device.sample, static_argnames="minimum")


class Model:
    """A ring of integers with priorities, handled one row at a time."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.row, self.priority, self.written = np.zeros((3, capacity))
        self.count, self.highest = 0, 1.0

    def insert(self, rows: np.ndarray, real: np.ndarray) -> None:
        for row in rows[real]:
            slot = self.count % len(self.row)
            self.row[slot], self.priority[slot] = row, self.highest
            self.written[slot] += 1
            self.count += 1

    def reprioritize(self, keys: np.ndarray, priority: np.ndarray) -> None:
        new: dict[int, float] = {}
        for (slot, generation), p in zip(keys, priority, strict=True):
            if generation and generation == self.written[slot]:
                new[slot] = max(new.get(slot, 0.0), p)
        for slot, p in new.items():
            self.priority[slot] = p
        self.highest = max(self.highest, *new.values(), 0.0) if new else self.highest


def filled(num: int, capacity: int = CAPACITY) -> Replay:
    replay = device.init({"x": jnp.zeros((), jnp.int32)}, capacity)
    rows = jnp.arange(capacity, dtype=jnp.int32)
    return insert(replay, {"x": rows}, rows < num)


def prioritized(priority: Any) -> Replay:
    """A full replay, whose rows have these priorities."""
    num = len(priority)
    replay = filled(num, num)
    keys = jnp.stack([jnp.arange(num, dtype=jnp.uint32), jnp.ones(num, jnp.uint32)], -1)
    return reprioritize(replay, keys, jnp.asarray(priority, jnp.float32))[0]


def evenly(num: int) -> jax.Array:
    return (jnp.arange(num) * 0.6180339887) % 1.0


def assert_sums(replay: Replay) -> None:
    tree = np.asarray(replay.tree)
    inner = np.arange(1, replay.capacity)
    np.testing.assert_array_equal(tree[inner], tree[2 * inner] + tree[2 * inner + 1])


def test_agrees_with_the_model_under_random_use() -> None:
    rng = np.random.default_rng(0)
    model, replay = Model(), device.init({"x": jnp.zeros((2,))}, CAPACITY)
    old_keys = np.zeros((4, 2), np.uint32)
    for i in range(40):
        real = rng.random((2, 3)) < 0.7
        rows = np.arange(6.0).reshape(2, 3) + 10 * i
        replay = insert(replay, {"x": jnp.stack([rows, -rows], -1)}, jnp.asarray(real))
        model.insert(rows.reshape(-1), real.reshape(-1))
        keys, batch = sample(replay, jnp.asarray(rng.random(4), jnp.float32))
        if i % 3:  # else the keys of the round before, of which some are stale
            old_keys = np.asarray(keys)
        priority = rng.random(4).astype(np.float32) * 3
        replay, _ = reprioritize(replay, old_keys, priority)
        slots = np.asarray(keys[:, 0])
        np.testing.assert_array_equal(batch.rows["x"][:, 0], model.row[slots])
        np.testing.assert_array_equal(keys[:, 1], model.written[slots])
        total = model.priority.sum()
        np.testing.assert_allclose(batch.probability, model.priority[slots] / total, rtol=1e-5)
        model.reprioritize(old_keys, priority)
        np.testing.assert_array_equal(replay.rows["x"][:, 1], -model.row)
        np.testing.assert_array_equal(replay.tree[CAPACITY:], model.priority.astype(np.float32))
        assert_sums(replay)
        assert replay.size == min(model.count, CAPACITY)
        assert replay.highest == np.float32(model.highest)


def test_rows_are_drawn_in_proportion_to_their_priorities() -> None:
    priority = np.array([0.0, 1.0, 5.0, 0.0, 2.0, 0.5, 1.5, 0.0])
    keys, batch = sample(prioritized(priority), evenly(2000))
    drawn = np.bincount(np.asarray(keys[:, 0]), minlength=8) / 2000
    np.testing.assert_allclose(drawn, priority / 10.0, atol=1e-3)
    np.testing.assert_allclose(batch.probability, priority[np.asarray(batch.rows["x"])] / 10.0)


def test_one_row_comes_from_each_part_of_the_total() -> None:
    replay = prioritized(np.ones(16))
    for uniforms in (jnp.zeros(16), jnp.full(16, 0.999)):
        keys, _ = sample(replay, uniforms)
        np.testing.assert_array_equal(keys[:, 0], np.arange(16))


def test_a_row_of_priority_zero_is_never_drawn() -> None:
    rng = np.random.default_rng(1)
    priority = rng.random(256) ** 20 * 1e6 * (rng.random(256) < 0.5)
    replay = prioritized(priority)
    for uniforms in (jnp.zeros(999), jnp.full(999, 1.0 - 2**-24), evenly(999)):
        keys, _ = sample(replay, uniforms)
        assert (priority[np.asarray(keys[:, 0])] > 0.0).all()


def test_all_zero_is_uniform_over_the_rows_there_are() -> None:
    replay = filled(3)
    keys = jnp.array([[0, 1], [1, 1], [2, 1]], jnp.uint32)
    replay, _ = reprioritize(replay, keys, jnp.zeros(3))
    keys, batch = sample(replay, evenly(300))
    np.testing.assert_array_equal(np.bincount(np.asarray(keys[:, 0])), [100, 100, 100])
    np.testing.assert_allclose(batch.probability, 1.0 / 3.0)


def test_a_stale_key_changes_nothing_and_is_counted() -> None:
    replay = filled(CAPACITY)
    keys, _ = sample(replay, jnp.zeros(4))  # slots 0, 2, 4, 6
    for row in (8, 9, 10):  # into slots 0, 1, 2
        replay = insert(replay, {"x": jnp.array([row])}, jnp.array([True]))
    after, counts = reprioritize(replay, keys, jnp.full(4, 0.5))
    np.testing.assert_array_equal(after.tree[CAPACITY:], [1, 1, 1, 1, 0.5, 1, 0.5, 1])
    assert counts["stale_keys"] == 2 and counts["bad_priorities"] == 0
    assert_sums(after)


def test_before_the_minimum_nothing_is_ready_and_keys_do_nothing() -> None:
    for num, ready in ((0, False), (3, False), (4, True)):
        replay = filled(num)
        keys, batch = sample(replay, evenly(5), minimum=4)
        after, counts = reprioritize(replay, keys, jnp.full(5, 0.5))
        assert batch.ready == ready
        assert np.isfinite(batch.probability).all()
        assert (after.tree != replay.tree).any() == ready
        assert counts["stale_keys"] == 0


def test_bad_priorities_become_the_highest_and_are_counted() -> None:
    replay = prioritized([1.0, 7.0, 1.0, 1.0])
    keys = jnp.stack([jnp.arange(4, dtype=jnp.uint32), jnp.ones(4, jnp.uint32)], -1)
    bad = jnp.array([jnp.nan, jnp.inf, -1.0, 2.0])
    replay, counts = reprioritize(replay, keys, bad)
    np.testing.assert_array_equal(replay.tree[4:], [7.0, 7.0, 7.0, 2.0])
    assert counts["bad_priorities"] == 3
    assert replay.highest == 7.0


def test_of_a_key_that_comes_twice_the_higher_priority_counts() -> None:
    keys = jnp.array([[1, 1], [1, 1], [1, 1]], jnp.uint32)
    replay, _ = reprioritize(filled(4), keys, jnp.array([0.2, 0.4, 0.3]))
    assert replay.tree[CAPACITY + 1] == jnp.float32(0.4)


def test_neither_ring_nor_tree_is_copied_inside_a_scan() -> None:
    capacity = 1 << 12

    def body(replay: Replay, uniforms: jax.Array) -> tuple[Replay, Any]:
        replay = insert(replay, {"x": jnp.zeros((4, 3))}, jnp.ones(4, bool))
        keys, batch = sample(replay, uniforms)
        priority = batch.probability + batch.rows["x"].sum(-1)
        return reprioritize(replay, keys, priority)

    replay = jax.eval_shape(lambda: device.init({"x": jnp.zeros(3)}, capacity))
    uniforms = jax.ShapeDtypeStruct((10, 16), jnp.float32)
    scan = jax.jit(lambda r, u: jax.lax.scan(body, r, u), donate_argnums=0)
    text = scan.lower(replay, uniforms).compile().as_text() or ""
    assert "f32" in text
    big = [f"[{capacity},3]", f"[{2 * capacity}]"]
    copies = [
        line for line in text.splitlines() if " copy(" in line and any(b in line for b in big)
    ]
    assert not copies


@pytest.mark.parametrize("capacity", [0, 1, 3, 1000])
def test_capacity_must_be_a_power_of_two(capacity: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        device.init({"x": jnp.zeros(())}, capacity)


def test_capacity_is_counted_in_32_bits() -> None:
    """The advice is never a power of two above the limit."""
    for capacity in (2**30, 2**29 + 1):
        with pytest.raises(ValueError, match=rf"at most 2\*\*29, found {capacity}\."):
            device.init({"x": jnp.zeros(())}, capacity)


def test_more_rows_than_the_capacity_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot insert 9 rows"):
        insert(filled(0), {"x": jnp.zeros(9, jnp.int32)}, jnp.ones(9, bool))
