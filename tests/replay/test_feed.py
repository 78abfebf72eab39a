"""A feed gives batches on a device, which a thread draws ahead."""

from __future__ import annotations

import threading
from pathlib import Path

import jax
import numpy as np
import pytest

from hocket.replay import Table, connect, serve
from hocket.replay.store.feed import _offsets, _unpack, feed


def table(**options: object) -> Table:
    made = Table("x:float32:3 y:int32 z:bool w:bfloat16", 1_000, **options)  # pyright: ignore[reportArgumentType]
    y = np.arange(500, dtype=np.int32)
    made.insert({
        "x": np.repeat(y[:, None], 3, axis=1).astype(np.float32), "y": y, "z": y % 2 == 0,
        "w": (y % 128).astype("bfloat16"),
    })  # fmt: skip
    return made


def test_batches_are_what_a_table_draws_with_the_same_seed() -> None:
    alone = table(seed=3)
    with feed(table(seed=3), 64, ahead=3) as batches:
        for batch, _ in zip(batches, range(20), strict=False):
            wanted = alone.sample(64)
            assert isinstance(batch.rows["x"], jax.Array)
            for name, x in wanted.rows.items():
                np.testing.assert_array_equal(batch.rows[name], x)
            np.testing.assert_array_equal(batch.keys, wanted.keys)
            np.testing.assert_array_equal(batch.probability, wanted.probability)


@pytest.mark.parametrize("carrier", ["shm", "unix", "tcp"])
def test_batches_of_a_server_stay_what_they_are(tmp_path: Path, carrier: str) -> None:
    with serve(table(), tcp="127.0.0.1:0", unix=tmp_path / "s") as server:
        address = next(a for a in server.addresses if a.startswith(carrier))
        replay = connect(address)
        with feed(replay, 32) as batches:
            held = [batch for batch, _ in zip(batches, range(30), strict=False)]
            for batch in held:
                assert replay.update(batch.keys, np.full(32, 2.0)) == 0
        for batch in held:
            np.testing.assert_array_equal(batch.rows["y"], batch.keys[:, 0])
            np.testing.assert_array_equal(batch.rows["x"][:, 2], batch.rows["y"])


def test_a_feed_ends_its_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    waiting = Table("x:int32", 10, min_size=5)
    with feed(waiting, 4):  # it waits for rows that never come
        pass
    with feed(table(), 4) as batches:
        next(batches)
    assert threading.active_count() == before
    with pytest.raises(ValueError, match="this feed was closed"):
        next(batches)


def test_what_goes_wrong_is_told_where_batches_are_taken(tmp_path: Path) -> None:
    with (
        feed(Table("x:int32", 10, min_size=5), 4, timeout=0.05) as batches,
        pytest.raises(TimeoutError, match="5"),
    ):
        next(batches)
    server = serve(table(), unix=tmp_path / "s")
    with feed(connect(server.address), 4) as batches:
        next(batches)
        server.close()
        with pytest.raises(ConnectionError, match="is gone"):
            list(zip(range(10), batches, strict=False))  # some were drawn before the end
    with pytest.raises(ValueError, match="ahead=0 must be at least 1"):
        feed(table(), 4, ahead=0)
    with pytest.raises(ValueError, match=r"from 1 to 2\*\*30 rows"), feed(table(), 0) as batches:
        next(batches)


def test_columns_packed_together_are_the_same_on_the_device() -> None:
    drawn = table().sample(7).rows
    layout = _offsets({name: (x.shape, x.dtype) for name, x in drawn.items()})
    memory = np.zeros(1_000, np.uint8)
    for name, (where, _, _) in layout.items():
        raw = np.ascontiguousarray(drawn[name]).view(np.uint8).reshape(-1)
        memory[where : where + raw.size] = raw
        assert where % 64 == 0
    unpacked = jax.jit(lambda x: _unpack(layout, x))(memory)
    for name, x in drawn.items():
        assert unpacked[name].dtype == x.dtype
        np.testing.assert_array_equal(unpacked[name], x)


def test_a_feed_that_is_closed_wakes_whoever_waits() -> None:
    batches = feed(Table("x:int32", 10, min_size=5), 4)
    errors: list[BaseException] = []

    def take() -> None:
        try:
            next(batches)
        except (ValueError, TimeoutError) as error:
            errors.append(error)

    thread = threading.Thread(target=take)
    thread.start()
    batches.close()
    thread.join(60)
    assert len(errors) == 1
