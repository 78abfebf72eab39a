"""A writer takes rows one by one, and does what it should when inserts must wait."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hocket.replay import Table, Writer


def limited(**options: Any) -> Table:
    """A table that takes 10 rows, and then one for each sampled row."""
    return Table("x:int32", 100, sampler="oldest", samples_per_insert=1.0, tolerance=9.0, **options)


def drawn(table: Table) -> list[int]:
    values = []
    while True:
        try:
            values += list(table.sample(1, timeout=0).rows["x"])
        except TimeoutError:
            return values


def test_rows_are_inserted_together() -> None:
    table = Table("x:float32:2 y:int32", 100)
    with Writer(table, 4) as writer:
        for k in range(10):
            writer.append({"x": [k, -k], "y": k}, priority=k + 1.0)
            assert len(table) == 4 * ((k + 1) // 4)
    assert (len(table), writer.inserted, writer.dropped) == (10, 10, 0)
    assert table.info()["highest"] == 10.0
    batch = table.sample(64)
    np.testing.assert_array_equal(batch.rows["x"][:, 1], -batch.rows["y"])


def test_who_is_ahead_waits_and_is_told() -> None:
    table = limited()
    writer = Writer(table, 5, timeout=0.01)
    for k in range(14):
        writer.append({"x": k})
    with pytest.raises(TimeoutError, match=r"not within 0\.01 s"):
        writer.append({"x": 14})
    assert (writer.inserted, writer.dropped) == (10, 0)
    table.sample(5)
    writer.close()  # the batch was kept
    assert (writer.inserted, writer.dropped) == (15, 0)


def test_new_rows_are_dropped() -> None:
    table = limited(max_times_sampled=1)
    writer = Writer(table, 5, when_ahead="drop_new")
    for k in range(25):
        writer.append({"x": k})
    assert (writer.inserted, writer.dropped) == (10, 15)
    assert drawn(table)[:10] == list(range(10))
    for k in range(25, 30):
        writer.append({"x": k})
    assert (writer.inserted, writer.dropped) == (15, 15)
    assert drawn(table) == list(range(25, 30))


def test_oldest_rows_are_dropped() -> None:
    table = limited(max_times_sampled=1)
    writer = Writer(table, 5, when_ahead="drop_oldest", pending=2)
    for k in range(30):
        writer.append({"x": k})
    assert (writer.inserted, writer.dropped) == (10, 10)
    assert drawn(table) == list(range(10))
    writer.flush()
    assert drawn(table) == list(range(20, 30))
    assert (writer.inserted, writer.dropped) == (20, 10)
    for k in range(20):
        writer.append({"x": k})
    writer.close()
    assert writer.inserted + writer.dropped == 50


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"num": 0}, "at least one row at a time, found num=0"),
        ({"when_ahead": "drop"}, "unknown when_ahead `drop`.*Known: drop_new, drop_oldest, wait"),
        ({"pending": 0}, "pending=0 must be at least 1"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Writer(Table("x:int32", 10), **{"num": 1, **options})


def test_rows_that_do_not_fit() -> None:
    table = Table("x:int32:2 y:float32", 10)
    writer = Writer(table, 4)
    with pytest.raises(ValueError, match="a row must have the columns x, y, found x"):
        writer.append({"x": [1, 2]})
    with pytest.raises(
        ValueError, match=r"`x` of a row must be int32 \[2\], found int64 \[3\]: \[1 2 3\]"
    ):
        writer.append({"x": [1, 2, 3], "y": 1.0})
    with pytest.raises(ValueError, match=r"`x` of a row must be int32 \[2\], found float64 \[2\]"):
        writer.append({"x": [1.5, 2.0], "y": 1.0})
    writer.append({"x": [1, 2], "y": 1.0})
    with pytest.raises(ValueError, match="all rows of a batch have priorities, or none has"):
        writer.append({"x": [1, 2], "y": 1.0}, priority=1.0)
    writer.close()
    assert len(table) == 1


def test_whole_numbers_that_fit() -> None:
    table = Table("a:uint8 b:int8:2 c:float32 d:bool", 10)
    writer = Writer(table, 1)
    writer.append({"a": 255, "b": [-128, 127], "c": 3, "d": True})
    row = table.sample(1).rows
    assert (row["a"], row["b"].tolist(), row["c"], row["d"]) == (255, [[-128, 127]], 3.0, True)
    for wrong in ({"a": 256}, {"a": -1}, {"b": [0, 128]}, {"a": 1.0}, {"d": 2}):
        with pytest.raises(ValueError, match="of a row must be"):
            writer.append({"a": 0, "b": [0, 0], "c": 0.5, "d": False, **wrong})
    assert len(table) == 1


def test_a_batch_that_is_refused_does_not_stop_those_after_it() -> None:
    table = Table("x:int32", 10)
    with Writer(table, 2) as writer:
        writer.append({"x": 0}, priority=1.0)
        with pytest.raises(ValueError, match="found nan"):
            writer.append({"x": 1}, priority=float("nan"))
        writer.append({"x": 2}, priority=1.0)
    assert (writer.inserted, writer.dropped, len(table)) == (1, 2, 1)


def test_whoever_fails_does_not_wait() -> None:
    writer = Writer(limited(), 5)

    def fail() -> None:
        with writer:
            for k in range(12):
                writer.append({"x": k})
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert (writer.inserted, writer.dropped) == (10, 2)


def test_what_could_not_be_inserted_in_time_is_counted() -> None:
    writer = Writer(limited(), 5, timeout=0.01)
    for k in range(12):
        writer.append({"x": k})
    with pytest.raises(TimeoutError):
        writer.close()
    assert (writer.inserted, writer.dropped) == (10, 2)
