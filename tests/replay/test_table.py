"""The native table, compared with a model, with statistics and with the device replay."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from hocket.replay import device
from hocket.replay.store.schema import Schema
from hocket.replay.store.table import Batch, Select, Table

SCHEMA = "obs:float32:4 action:int32"


def rows(*numbers: float) -> dict[str, np.ndarray]:
    """Rows that can be told apart by their numbers."""
    obs = np.repeat(np.array(numbers, np.float32)[:, None], 4, axis=1)
    return {"obs": obs, "action": np.array(numbers, np.int32)}


def numbers(batch: Batch) -> list[int]:
    np.testing.assert_array_equal(batch.rows["obs"][:, 0], batch.rows["action"])
    return batch.rows["action"].tolist()


# Against a model


class Model(RuleBasedStateMachine):
    """A list of rows, oldest first, which the table must agree with after every operation."""

    CAPACITY = 7
    keys = Bundle("keys")
    priority = st.floats(0.0, 10.0, width=32)

    def __init__(self) -> None:
        super().__init__()
        self.table = Table(SCHEMA, self.CAPACITY, seed=1)
        self.rows: list[dict[str, Any]] = []
        self.next = 0
        self.highest = np.float32(1.0)

    @rule(target=keys, priorities=st.lists(priority, min_size=1, max_size=4), given=st.booleans())
    def insert(self, priorities: list[float], given: bool) -> Any:
        new = [float(self.next + i) for i in range(len(priorities))]
        new_keys = self.table.insert(rows(*new), priorities if given else None)
        for number, priority, key in zip(new, priorities, new_keys, strict=True):
            at = np.float32(priority) if given else self.highest
            self.rows.append({"number": number, "priority": at, "key": tuple(key)})
        self.highest = max(self.highest, *(r["priority"] for r in self.rows[-len(new) :]))
        self.rows = self.rows[-self.CAPACITY :]
        self.next += len(new)
        return tuple(new_keys[0])

    @rule(chosen=st.lists(keys, min_size=1, max_size=5), data=st.data())
    def update(self, chosen: list[Any], data: st.DataObject) -> None:
        priorities = data.draw(st.lists(self.priority, min_size=len(chosen), max_size=len(chosen)))
        stale = self.table.update(np.array(chosen, np.uint32), priorities)
        there = {row["key"]: row for row in self.rows}
        assert stale == sum(key not in there for key in chosen)
        wanted: dict[Any, list[float]] = {}
        for key, priority in zip(chosen, priorities, strict=True):
            wanted.setdefault(key, []).append(priority)
        for key in wanted.keys() & there.keys():
            there[key]["priority"] = np.float32(max(wanted[key]))
            self.highest = max(self.highest, there[key]["priority"])

    @rule(chosen=consumes(keys), bad=st.sampled_from([math.nan, math.inf, -1.0]))
    def update_badly(self, chosen: Any, bad: float) -> None:
        with pytest.raises(ValueError, match="in row 1"):
            self.table.update([chosen, chosen], [1.0, bad])

    @rule(num=st.integers(1, 20))
    def sample(self, num: int) -> None:
        if not self.rows:
            with pytest.raises(TimeoutError, match="there are 0 rows"):
                self.table.sample(num, timeout=0.0)
            return
        batch = self.table.sample(num)
        there = {row["number"]: row for row in self.rows}
        total = sum(float(row["priority"]) for row in self.rows)
        assert batch.evenly == (total == 0.0)
        for number, key, chance in zip(numbers(batch), batch.keys, batch.probability, strict=True):
            row = there[number]
            assert row["key"] == tuple(key)
            assert total == 0.0 or row["priority"] > 0.0
            share = float(row["priority"]) / total if total else 1.0 / len(self.rows)
            assert chance == pytest.approx(share, rel=1e-5)

    @rule()
    def clear(self) -> None:
        self.table.clear()
        self.rows = []
        self.highest = np.float32(1.0)

    @invariant()
    def as_many(self) -> None:
        assert len(self.table) == len(self.rows)


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


# Against statistics


def chi_square(counts: np.ndarray, wanted: np.ndarray) -> float:
    """The chi-square statistic of frequencies, in standard deviations from its mean."""
    keep = wanted > 0
    value = ((counts[keep] - wanted[keep]) ** 2 / wanted[keep]).sum()
    freedom = keep.sum() - 1
    return float((value - freedom) / np.sqrt(2 * freedom))


def test_rows_are_drawn_in_proportion_to_their_priority() -> None:
    capacity, draws, alpha = 1_000, 300_000, 0.6
    priority = np.random.default_rng(0).exponential(size=capacity)
    priority[::10] = 0.0
    table = Table(SCHEMA, capacity, seed=2)
    table.insert(rows(*range(capacity)), priority**alpha)
    share = priority**alpha / (priority**alpha).sum()
    tally = np.zeros(capacity)
    batch = None
    for _ in range(draws):  # one by one, so that draws are independent
        batch = table.sample(1, out=batch)
        tally[batch.rows["action"]] += 1
    assert abs(chi_square(tally, share * draws)) < 4.0
    assert tally[::10].sum() == 0  # rows of priority zero
    # A batch draws from equal parts, so no row is drawn much more or less often than it should.
    batch = table.sample(100_000)
    counts = np.bincount(batch.rows["action"], minlength=capacity)
    assert np.abs(counts - share * 100_000).max() < 2.0
    np.testing.assert_allclose(batch.probability, share[batch.rows["action"]], rtol=1e-5)


def test_each_of_many_small_priorities_may_be_drawn() -> None:
    """In float32 there are fewer points than such rows, so that some would never be drawn."""
    many, draws = 1 << 20, 4_000_000
    table = Table("x:uint32", many, seed=3)
    priority = np.where(np.arange(many) % 2, 1.0, 0.01).astype(np.float32)
    table.insert({"x": np.arange(many, dtype=np.uint32)}, priority)
    counts = np.zeros(many)
    for _ in range(draws // 100_000):
        np.add.at(counts, table.sample(100_000).rows["x"], 1)
    assert counts[::2].sum() / counts[1::2].sum() == pytest.approx(0.01, rel=0.02)
    wanted = 1.0 - math.exp(-draws * 0.01 / priority.sum())
    assert (counts[::2] > 0).mean() == pytest.approx(wanted, rel=0.02)


def test_uniform_draws_are_even() -> None:
    table = Table(SCHEMA, 64, sampler="uniform", seed=4)
    table.insert(rows(*range(100)[:64]), np.zeros(64))
    batch = table.sample(64_000)
    np.testing.assert_array_equal(np.bincount(numbers(batch)), 1000)
    assert not batch.evenly
    np.testing.assert_allclose(batch.probability, 1 / 64)


# Against the device replay


@pytest.mark.parametrize("capacity", [4, 64, 256, 2048])
def test_it_draws_what_the_device_replay_draws(capacity: int) -> None:
    rng = np.random.default_rng(capacity)
    table = Table("x:int32", capacity)
    replay = device.init(jnp.zeros((), jnp.int32), capacity)
    insert, sample, reprioritize = map(jax.jit, (device.insert, device.sample, device.reprioritize))
    seen = 0
    for _ in range(12):
        num = capacity // 4
        x = np.arange(seen, seen + num, dtype=np.int32)
        seen += num
        replay = insert(replay, jnp.asarray(x), jnp.ones(num, bool))
        table.insert({"x": x})
        uniforms = rng.random(32, np.float32)
        keys, batch = sample(replay, jnp.asarray(uniforms))
        ours = table.sample(32, uniforms=uniforms)
        np.testing.assert_array_equal(ours.rows["x"], batch.rows)
        np.testing.assert_array_equal(ours.keys, keys)
        np.testing.assert_array_equal(ours.probability, batch.probability)
        priority = rng.exponential(size=32).astype(np.float32)
        replay, counts = reprioritize(replay, keys, jnp.asarray(priority))
        assert table.update(ours.keys, priority) == int(counts["stale_keys"])
    assert table.info()["total"] == float(replay.tree[1])


# What users see


def test_all_selectors_as_samplers_and_removers() -> None:
    def kept(remover: Any) -> set[int]:
        table = Table(SCHEMA, 3, remover=remover, sampler="uniform", seed=5)
        for number, priority in ((0, 2.0), (1, 0.0), (2, 9.0), (3, 5.0)):
            table.insert(rows(number), [priority])
        return set(numbers(table.sample(3)))

    assert kept("oldest") == {1, 2, 3}
    assert kept("newest") == {0, 1, 3}
    assert kept("highest") == {0, 1, 3}
    assert kept("lowest") == {0, 2, 3}
    assert 1 in kept("prioritized")
    assert 3 in kept("uniform")
    firsts = {"oldest": 0, "newest": 3, "highest": 2, "lowest": 1}
    for sampler, first in firsts.items():
        table = Table(SCHEMA, 4, sampler=sampler)  # pyright: ignore[reportArgumentType]
        table.insert(rows(0, 1, 2, 3), [2.0, 0.0, 9.0, 5.0])
        assert numbers(table.sample(2)) == [first, first]


def test_a_queue() -> None:
    table = Table(SCHEMA, 10, sampler="oldest", max_times_sampled=1)
    keys = table.insert(rows(0, 1, 2, 3, 4))
    assert numbers(table.sample(3)) == [0, 1, 2]
    assert numbers(table.sample(2)) == [3, 4]
    assert table.update(keys, np.ones(5)) == 5  # gone
    with pytest.raises(TimeoutError, match="there are 0 rows, and sampling begins with 1"):
        table.sample(1, timeout=0.01)


def test_who_is_ahead_waits() -> None:
    table = Table(SCHEMA, 100, min_size=4, samples_per_insert=2.0, tolerance=12.0)
    with pytest.raises(TimeoutError, match="there are 0 rows, and sampling begins with 4"):
        table.sample(4, timeout=0.0)
    table.insert(rows(*range(8)))
    with pytest.raises(TimeoutError, match="rows were sampled too seldom for more inserts"):
        table.insert(rows(8, 9, 10), timeout=0.01)
    inserted = threading.Event()

    def insert() -> None:
        table.insert(rows(8, 9, 10))
        inserted.set()

    thread = threading.Thread(target=insert)
    thread.start()
    assert not inserted.wait(0.05)
    table.sample(4)
    assert inserted.wait(10.0)
    thread.join()
    table.sample(8)
    table.sample(8)
    table.sample(4)
    with pytest.raises(TimeoutError, match="too few rows were inserted for more samples"):
        table.sample(4, timeout=0.01)


def test_frames_are_stored_once() -> None:
    table = Table("obs:uint8:2*3 action:int32", 100, num_frames=10, seed=6)
    first = table.add_frames(np.repeat(np.arange(6, dtype=np.uint8)[:, None], 2, axis=1))
    np.testing.assert_array_equal(first, np.arange(6))
    stacks = np.stack([first[:-2], first[1:-1], first[2:]], axis=1)
    table.insert({"obs": stacks, "action": np.arange(4, dtype=np.int32)})
    batch = table.sample(32)
    assert batch.rows["obs"].shape == (32, 3, 2)
    for stack, action in zip(batch.rows["obs"], batch.rows["action"], strict=True):
        np.testing.assert_array_equal(stack[:, 0], action + np.arange(3))
    with pytest.raises(ValueError, match=r"there is no frame 6, but those from 0 to 6 .* in row 1"):
        table.insert({"obs": np.array([[0, 1, 2], [4, 5, 6]], np.uint64),
                      "action": np.zeros(2, np.int32)})  # fmt: skip
    table.add_frames(np.zeros((6, 2), np.uint8))  # frames 0 and 1 are gone
    assert set(table.sample(32).rows["action"].tolist()) == {2, 3}
    assert table.info()["frames"] == 10


def test_all_rows_can_be_looked_at() -> None:
    table = Table(SCHEMA, 4)
    assert table.contents().keys.shape == (0, 2)
    first = table.insert(rows(0, 1, 2), [1.0, 0.0, 3.0])
    second = table.insert(rows(3, 4), [4.0, 5.0])  # the last of them overwrites the very first
    table.update(first[2:], [9.0])
    contents = table.contents()
    assert contents.rows["action"].tolist() == [1, 2, 3, 4]  # oldest first
    np.testing.assert_array_equal(contents.rows["obs"][:, 0], [1, 2, 3, 4])
    np.testing.assert_array_equal(contents.keys, [*first[1:], *second])
    assert contents.priority.tolist() == [0.0, 9.0, 4.0, 5.0]


def test_threads_share_a_table() -> None:
    table = Table(SCHEMA, 1 << 12)
    table.insert(rows(0))

    def work(seed: int) -> None:
        for i in range(300):
            table.insert(rows(*range(seed, seed + 16)))
            batch = table.sample(16)
            numbers(batch)
            table.update(batch.keys, np.full(16, 1.0 + i))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    info = table.info()
    assert info["inserts"] == 1 + 4 * 300 * 16
    assert info["samples"] == 4 * 300 * 16
    assert info["updates"] + info["stale_keys"] == 4 * 300 * 16


def test_a_batch_is_written_over() -> None:
    table = Table(SCHEMA, 8)
    table.insert(rows(1))
    batch = table.sample(4)
    table.clear()
    table.insert(rows(2))
    assert table.sample(4, out=batch) is batch
    assert numbers(batch) == [2, 2, 2, 2]


def test_every_dtype() -> None:
    for dtype in (np.bool_, np.int8, np.uint16, np.int64, np.float16, np.float64,
                  ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.complex64):  # fmt: skip
        x = np.array([[0, 1], [1, 0]]).astype(dtype)
        table = Table(Schema.of({"x": x}), 2)
        table.insert({"x": x}, [0.0, 1.0])
        drawn = table.sample(1).rows["x"]
        assert drawn.dtype == dtype
        np.testing.assert_array_equal(drawn[0], x[1])
        assert Schema.parse(str(table.schema)) == table.schema


def test_a_seed_repeats_the_draws() -> None:
    def draws(seed: int) -> list[int]:
        table = Table(SCHEMA, 100, seed=seed)
        table.insert(rows(*range(100)))
        return numbers(table.sample(1)) + numbers(table.sample(50))

    assert draws(1) == draws(1) != draws(2)


def test_memory_for_each_row() -> None:
    table = Table("obs:float32:4 next_obs:float32:4 action:int32 reward:float32 done:float32", 1000)
    assert table.info()["bytes"] / 1000 < 100


def other_batch() -> Batch:
    table = Table("obs:int32:4 action:int32", 8)
    table.insert({"obs": np.zeros((1, 4), np.int32), "action": np.zeros(1, np.int32)})
    return table.sample(1)


MISTAKES = {
    "no rows": (lambda t: t.insert(rows()), "there are no rows to insert"),
    "too many rows": (lambda t: t.insert(rows(*range(9))), "9 rows at once .* capacity of 8"),
    "a NaN": (lambda t: t.insert(rows(0, 1), [1, math.nan]), "found nan in row 1"),
    "a negative priority": (lambda t: t.insert(rows(0), [-1]), "found -1 in row 0"),
    "an infinite one": (lambda t: t.update([[0, 1]], [math.inf]), "found inf in row 0"),
    "priorities for other rows": (lambda t: t.insert(rows(0), [1, 2]), r"each of 1 rows.*\[2\]"),
    "a missing column": (lambda t: t.insert({"obs": rows(0)["obs"]}), "columns obs:float32:4 act"),
    "another column": (
        lambda t: t.insert({"obs": rows(0)["obs"], "a": rows(0)["action"]}),
        "action:int32, found obs:float32:4 a:int32",
    ),
    "a wrong dtype": (
        lambda t: t.insert({**rows(0), "action": np.zeros(1)}),
        r"`action` must be a batch of int32 \[\], found float64 \[1\]",
    ),
    "a wrong shape": (
        lambda t: t.insert({**rows(0), "obs": np.zeros((1, 3), np.float32)}),
        r"`obs` must be a batch of float32 \[4\], found float32 \[1, 3\]",
    ),
    "uneven columns": (
        lambda t: t.insert({**rows(0), "action": np.zeros(2, np.int32)}),
        "the same number of rows, found {'obs': 1, 'action': 2}",
    ),
    "no samples": (lambda t: t.sample(0), "from 1 to .* found 0"),
    "a bad uniform": (lambda t: t.sample(1, uniforms=[1.0]), r"in \[0, 1\), found 1 in row 0"),
    "no keys": (
        lambda t: t.update([1, 2], [1, 2]),
        r"uint32 \[n, 2\] .*found int64 \[2\]",
    ),
    "frames": (lambda t: t.add_frames(np.zeros(1)), "has no column of frames"),
    "a huge priority": (lambda t: t.insert(rows(0), [1e30]), "from 0 to 1e.29, found 1e.30 in row"),
    "fractions as keys": (lambda t: t.update([[0.5, 1.0]], [1]), "found float64"),
    "keys that are too large": (lambda t: t.update([[2**32, 1]], [1]), "found 1 to 4294967296"),
    "a timeout of nothing": (
        lambda t: t.sample(1, timeout=math.nan),
        "0 seconds, found nan",
    ),
    "a negative timeout": (
        lambda t: t.insert(rows(0), timeout=-1),
        "0 seconds, found -1",
    ),
    "a batch of another table": (
        lambda t: t.sample(1, out=other_batch()),
        "`out` must be a batch with the columns obs:float32:4 action:int32",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_refused_and_change_nothing(mistake: str) -> None:
    table = Table(SCHEMA, 8)
    table.insert(rows(5))
    work, words = MISTAKES[mistake]
    before = table.info()
    with pytest.raises(ValueError, match=words):
        work(table)
    assert table.info() == before
    assert numbers(table.sample(2)) == [5, 5]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"capacity": 0}, "from 1 to 2\\*\\*30 rows, found 0"),
        ({"capacity": -1}, "capacity must be from 0 to"),
        ({"capacity": 1e6}, "capacity must be a whole number, found 1000000.0"),
        ({"schema": "x:uint8:4*0"}, "`x:uint8:4\\*0` is no column"),
        ({"sampler": "best"}, "unknown sampler `best`.*Known: highest, lowest"),
        ({"remover": "first"}, "unknown remover `first`"),
        ({"min_size": 9}, "never holds the 9"),
        ({"samples_per_insert": 1.0}, "needs a tolerance"),
        ({"tolerance": 1.0}, "has no effect without samples_per_insert"),
        ({"samples_per_insert": -1.0, "tolerance": 4.0}, "above 0, found -1.0"),
        ({"samples_per_insert": 4.0, "tolerance": 1.0}, "no room for 4 "),
        (
            {"samples_per_insert": 4.0, "tolerance": 9.0, "max_times_sampled": 2},
            "sampled at most 2 times, so there never are 4 ",
        ),
        ({"schema": "x"}, "`x` is no column. Write name:dtype:shape"),
        ({"schema": "x:floot32"}, "unknown dtype `floot32`"),
        ({"schema": ""}, "at least one column"),
        ({"schema": "x:int8 x:int8"}, "different names, found .'x'. twice"),
        ({"schema": "x:int8:0"}, "no axis of length 0"),
        (
            {"schema": "x:int8:4*2 y:int8:5*2"},
            "need the same dtype and shape, found x:int8:4",
        ),
        ({"schema": "x:int8*2", "remover": "newest"}, "with frames removes the oldest rows"),
        ({"num_frames": 4}, "come together"),
    ],
)
def test_tables_that_cannot_be(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Table(**{"schema": SCHEMA, "capacity": 8, **options})


@pytest.mark.parametrize(
    "batch",
    [
        {"x": np.zeros(2, ">f4")},
        {"x": np.zeros(2, "datetime64[s]")},
        {"x": np.zeros(2, [("a", "f4")])},
        {"x": np.zeros(2, "S3")},
        {"a b": np.zeros(2)},
        {"a:b": np.zeros(2)},
        {"": np.zeros(2)},
    ],
    ids=str,
)
def test_schemas_that_could_not_be_restored(batch: dict[str, np.ndarray]) -> None:
    with pytest.raises(ValueError, match="in the byte order of this machine, and names without"):
        Schema.of(batch)


def test_what_waited_in_vain_is_forgotten() -> None:
    table = Table(SCHEMA, 100, samples_per_insert=1.0, tolerance=50.0)
    table.insert(rows(*range(10)))
    with pytest.raises(TimeoutError):
        table.sample(80, timeout=0.0)
    table.insert(rows(*range(30)))


def test_numbers_just_below_one() -> None:
    table = Table(SCHEMA, 4)
    table.insert(rows(0, 1, 2, 3))
    assert numbers(table.sample(1, uniforms=[1 - 2.0**-30])) == [3]


def test_whoever_waits_is_woken_by_closing() -> None:
    table = Table(SCHEMA, 4)
    words = []

    def wait() -> None:
        with pytest.raises(ValueError, match="the table was closed") as error:
            table.sample(1)
        words.append(str(error.value))

    thread = threading.Thread(target=wait)
    thread.start()
    table.close()
    thread.join(10.0)
    assert words
    with pytest.raises(ValueError, match="the table was closed"):
        table.insert(rows(0))


def test_python_may_end_while_a_thread_waits() -> None:
    script = """
import threading, time
from hocket.replay.store.table import Table
table = Table("x:float32", 4)
for _ in range(3):
    threading.Thread(target=table.sample, args=(1,), daemon=True).start()
time.sleep(0.2)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_ctrl_c_ends_waiting() -> None:
    script = """
import signal, threading, os
from hocket.replay.store.table import Table
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    Table("x:float32", 4).sample(1)
except KeyboardInterrupt:
    print("ended")
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert ended.stdout == b"ended\n", ended.stderr


def test_requests_that_could_wait_for_ever() -> None:
    table = Table(SCHEMA, 100, samples_per_insert=1.0, tolerance=8.0)
    table.insert(rows(*range(8)))
    with pytest.raises(ValueError, match="inserts of 8 rows and samples of 9 could wait for each"):
        table.sample(9)


# On disk


@pytest.mark.parametrize(
    "options",
    [
        *(
            {"sampler": sampler, "remover": remover, "max_times_sampled": times}
            for sampler in get_args(Select)
            for remover in get_args(Select)
            for times in (0, 2)
        ),
        {"samples_per_insert": 1.0, "tolerance": 1000.0},
    ],
    ids=str,
)
def test_a_restored_table_goes_on_as_the_one_that_was_saved(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    table = Table(SCHEMA, 50, seed=7, **options)
    rng = np.random.default_rng(8)

    def work(table: Table, rng: np.random.Generator) -> list[Any]:
        results = []
        for i in range(10):
            results.append(table.insert(rows(*range(10 * i, 10 * i + 10)), rng.random(10)))
            batch = table.sample(5)
            table.update(batch.keys, rng.random(5))
            results += [batch.keys, batch.probability, *batch.rows.values()]
        return results

    work(table, rng)
    table.save(tmp_path / "table")
    again = Table.restore(tmp_path / "table")
    assert again.info() == table.info()
    assert again.schema == table.schema
    one, other = (work(t, np.random.default_rng(9)) for t in (table, again))
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


def test_keys_of_before_are_stale_after_clearing_and_restoring(tmp_path: Path) -> None:
    table = Table(SCHEMA, 4)
    old = table.insert(rows(0, 1))
    table.clear()
    table.save(tmp_path / "table")
    again = Table.restore(tmp_path / "table")
    new = again.insert(rows(2, 3))
    assert again.update(old, [5.0, 5.0]) == 2
    assert again.update(new, [5.0, 5.0]) == 0


def test_snapshots_wait_for_each_other_and_leave_nothing_behind(tmp_path: Path) -> None:
    table = Table("x:uint8:65536", 256)
    table.insert({"x": np.zeros((256, 65536), np.uint8)})
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(table.save, [tmp_path / "table"] * 4))
    assert len(Table.restore(tmp_path / "table")) == 256
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="could not be renamed"):
        table.save(tmp_path / "folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "table"]


def test_frames_are_saved(tmp_path: Path) -> None:
    table = Table("obs:uint8:2*2 x:int32", 4, num_frames=6)
    for i in range(5):
        numbers = table.add_frames(np.full((2, 2), i, np.uint8))
        table.insert({"obs": numbers[None], "x": np.array([i], np.int32)})
    table.save(tmp_path / "table")
    again = Table.restore(tmp_path / "table")
    batch = again.sample(30)
    assert set(batch.rows["x"].tolist()) == {2, 3, 4}
    np.testing.assert_array_equal(batch.rows["obs"][:, 1, 1], batch.rows["x"])
    again.add_frames(np.zeros((2, 2), np.uint8))
    assert len(again) == 2


def test_a_snapshot_is_of_the_moment_in_which_it_began(tmp_path: Path) -> None:
    """Rows have 64 KiB, so it takes many pieces, and other threads insert in between."""
    table = Table("number:int32 bulk:uint8:65536", 256)
    bulk = np.zeros((1, 65536), np.uint8)
    inserted = 0

    def insert(number: int) -> None:
        table.insert({"number": np.array([number], np.int32), "bulk": bulk + number % 256})

    for inserted in range(256):
        insert(inserted)
    done = threading.Event()

    def go_on() -> None:
        nonlocal inserted
        while not done.is_set():
            inserted += 1
            insert(inserted)

    thread = threading.Thread(target=go_on)
    thread.start()
    for name in range(5):
        before = table.info()["inserts"]
        table.save(tmp_path / str(name))
        between = (before, table.info()["inserts"])
        again = Table.restore(tmp_path / str(name))
        count = again.info()["inserts"]
        assert between[0] <= count <= between[1]
        batch = again.sample(256)
        assert sorted(batch.rows["number"].tolist()) == list(range(count - 256, count))
        np.testing.assert_array_equal(batch.rows["bulk"][:, -1], batch.rows["number"] % 256)
    done.set()
    thread.join()
    assert inserted > 300


def test_what_is_wrong_with_a_file(tmp_path: Path) -> None:
    table = Table(SCHEMA, 1000)
    table.insert(rows(*range(1000)))
    good = tmp_path / "good"
    table.save(good)
    assert [path.name for path in tmp_path.iterdir()] == ["good"]
    data = good.read_bytes()

    def restored(changed: bytes) -> None:
        (tmp_path / "bad").write_bytes(changed)
        Table.restore(tmp_path / "bad")

    restored(data)
    with pytest.raises(ValueError, match=r"bad is corrupt: segment 3 \(rows\)"):
        restored(data[:-1000] + bytes([data[-1000] ^ 1]) + data[-999:])
    with pytest.raises(ValueError, match=r"bad ends within segment 3 \(rows\): it is not complete"):
        restored(data[:-1000])
    with pytest.raises(ValueError, match="bad ends before segment 4: it is not complete"):
        restored(data[:-32])
    with pytest.raises(ValueError, match="bad is corrupt: the head of segment 0"):
        restored(data[:8] + b"x" + data[9:])
    with pytest.raises(ValueError, match="bad is none: it does not begin as one"):
        restored(b"something else")
    with pytest.raises(FileNotFoundError):
        Table.restore(tmp_path / "nothing")
    with pytest.raises(OSError, match="could not be opened: No such file"):
        table.save(tmp_path / "no" / "folder")
    assert numbers(table.sample(1, uniforms=[0.5])) == [500]


def test_no_byte_of_a_file_may_change(tmp_path: Path) -> None:
    table = Table(SCHEMA, 8)
    table.insert(rows(1, 2, 3))
    table.save(tmp_path / "good")
    data = (tmp_path / "good").read_bytes()
    for at in range(len(data)):
        (tmp_path / "bad").write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        with pytest.raises(ValueError, match=r"the snapshot .*bad "):
            Table.restore(tmp_path / "bad")


def test_an_install_without_the_store_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hocket.replay.store._store", None)
    monkeypatch.delattr("hocket.replay.store._store", raising=False)
    with pytest.raises(RuntimeError, match=r"apt-get install g\+\+ python3-dev`\), then install"):
        Table(SCHEMA, 8)
    with pytest.raises(RuntimeError, match="without its replay store"):
        Table.restore(__file__)
