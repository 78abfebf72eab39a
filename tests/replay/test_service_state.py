"""Rate limits and snapshots of tables that are served."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import numpy as np
import pytest
from tests.replay.carriers import (
    CARRIERS,
    PATIENCE,
    SCHEMA,
    address,
    eventually,
    in_thread,
    rows,
    same,
    serving,
    serving_elsewhere,
)

from hocket.replay import Table, connect

each_carrier = pytest.mark.parametrize("carrier", CARRIERS)


# Limits


@pytest.mark.parametrize("carrier", [*CARRIERS, "all"])
def test_nobody_starves(carrier: str) -> None:
    """Four clients that insert when they may, and one that samples, all have turns."""
    table = Table(SCHEMA, 100, samples_per_insert=1.0, tolerance=2.0)
    carriers = CARRIERS if carrier == "all" else (carrier,) * 4
    with serving(table) as server:
        counts, done = [0] * 4, threading.Event()

        def insert(which: int) -> None:
            client = connect(address(server, carriers[which]))
            while not done.is_set():
                client.insert(rows(which), timeout=PATIENCE)
                counts[which] += 1

        threads = [in_thread(lambda which=which: insert(which)) for which in range(4)]
        client = connect(address(server, carriers[0]))
        for _ in range(1000):
            client.sample(1, timeout=PATIENCE)
        inserted = list(counts)
        done.set()
        while any(thread.is_alive() for thread, _ in threads):
            with contextlib.suppress(TimeoutError):
                client.sample(1, timeout=0.01)
        assert [outcome for _, outcome in threads] == [[None]] * 4
        # If the same client is always first, others have 1. How many more they have depends on
        # how often a busy machine lets their threads run.
        assert min(inserted) >= 5, inserted


@each_carrier
def test_inserts_and_samples_keep_their_distance(carrier: str) -> None:
    table = Table(SCHEMA, 1000, samples_per_insert=2.0, tolerance=40.0, min_size=10)
    with serving(table) as server:

        def insert() -> None:
            client = connect(address(server, carrier))
            for _ in range(50):
                client.insert(rows(1, 2, 3, 4), timeout=PATIENCE)

        def sample() -> None:
            client = connect(address(server, carrier))
            for _ in range(98):
                client.sample(8, timeout=PATIENCE)

        threads = [in_thread(work) for work in (insert, insert, sample)]
        for thread, outcome in threads:
            thread.join(PATIENCE)
            assert outcome == [None]
        info = connect(address(server, carrier)).info()
        assert (info["inserts"], info["samples"], info["waiting"]) == (400, 784, 0)
        assert (info["samples_per_insert"], info["least"], info["most"]) == (2.0, -20.0, 60.0)


@each_carrier
def test_what_waited_in_vain_is_forgotten(carrier: str) -> None:
    table = Table(SCHEMA, 100, samples_per_insert=1.0, tolerance=50.0)
    with serving(table) as server, connect(address(server, carrier)) as client:
        client.insert(rows(*range(10)))
        with pytest.raises(TimeoutError, match="not within 0 s: too few rows were inserted"):
            client.sample(80, timeout=0.0)
        client.insert(rows(*range(30)))  # together with samples of 80, it could wait for ever
        client.sample(5)
        client.insert(rows(*range(15)))
        with pytest.raises(TimeoutError, match="rows were sampled too seldom"):
            client.insert(rows(*range(30)), timeout=0.05)
        info = client.info()
        assert info["timeouts"] == 2 and info["waiting"] == 0
        # Also for a client that is gone.
        other = connect(address(server, carrier))
        client.clear()
        in_thread(lambda: other.sample(80))
        eventually(lambda: client.info()["waiting"] == 1)
        with pytest.raises(ValueError, match="could wait for each other"):
            client.insert(rows(*range(30)))
        other.close()
        eventually(lambda: client.info()["waiting"] == 0)
        client.insert(rows(*range(30)))


# Snapshots


@each_carrier
def test_a_client_has_its_table_saved(carrier: str, tmp_path: Path) -> None:
    table = Table(SCHEMA, 50, seed=4)
    with serving(table, snapshots=tmp_path) as server, connect(address(server, carrier)) as client:
        client.insert(rows(*range(30)), np.arange(30.0))
        client.sample(7)
        client.save()
        again = Table.restore(tmp_path / "replay.replay")
        same(client.sample(20), again.sample(20))
        data = (tmp_path / "replay.replay").read_bytes()
        (tmp_path / "replay.replay").write_bytes(data[:-100] + b"x" + data[-99:])
        with pytest.raises(ValueError, match=r"is corrupt: segment \d"):
            Table.restore(tmp_path / "replay.replay")


@each_carrier
def test_saving_that_cannot_be(carrier: str, tmp_path: Path) -> None:
    with serving(Table(SCHEMA, 5)) as server, connect(address(server, carrier)) as client:
        with pytest.raises(ValueError, match="was given no folder for snapshots"):
            client.save()
        client.insert(rows(1))
    with (
        serving(Table(SCHEMA, 5), snapshots=tmp_path / "a" / "b") as server,
        connect(address(server, carrier)) as client,
    ):
        (tmp_path / "a" / "b" / "replay.replay").mkdir()
        with pytest.raises(ValueError, match="could not be renamed"):
            client.save()
        client.insert(rows(1))


def test_saving_while_others_go_on(tmp_path: Path) -> None:
    """The rows are large enough for many pieces, and two clients save at once."""
    table = Table("number:int32 bulk:uint8:65536", 128)
    with serving(table, snapshots=tmp_path) as server:
        done = threading.Event()

        def go_on(carrier: str) -> int:
            client, count = connect(address(server, carrier)), 0
            while not done.is_set():
                number = client.info()["inserts"]
                client.insert(
                    {
                        "number": np.array([number], np.int32),
                        "bulk": np.full((1, 65536), number % 251, np.uint8),
                    }
                )
                batch = client.sample(4)
                for x, bulk in zip(batch.rows["number"], batch.rows["bulk"], strict=True):
                    assert (bulk == x % 251).all()
                count += 1
            return count

        others = [in_thread(lambda carrier=carrier: go_on(carrier)) for carrier in CARRIERS]
        clients = [connect(address(server, carrier)) for carrier in ("shm", "tcp")]
        eventually(lambda: table.info()["inserts"] > 150)
        for _ in range(3):
            before = table.info()["inserts"]
            clients[0].save()
            again = Table.restore(tmp_path / "replay.replay")
            assert before <= again.info()["inserts"] <= table.info()["inserts"]
            batch = again.sample(128)
            for x, bulk in zip(batch.rows["number"], batch.rows["bulk"], strict=True):
                assert (bulk == x % 251).all()
        saves = [in_thread(client.save) for client in clients * 3]
        for thread, outcome in saves:
            thread.join(PATIENCE)
            assert outcome == [None] or "another one of this table is under way" in str(outcome[0])
        done.set()
        for thread, outcome in others:
            thread.join(PATIENCE)
            assert isinstance(outcome[0], int) and outcome[0] > 0, outcome
        assert [None] in [outcome for _, outcome in saves]
        assert sorted(x.name for x in tmp_path.iterdir()) == ["replay.inserts", "replay.replay"]


@each_carrier
def test_inserts_are_counted_whatever_happens(carrier: str, tmp_path: Path) -> None:
    tables = {"replay": {"schema": SCHEMA, "capacity": 10}}
    with serving_elsewhere(tables, snapshots=str(tmp_path)) as server:
        client = connect(address(server, carrier))
        for i in range(25):
            client.insert(rows(i, i))
        client.clear()
        client.insert(rows(1))
        server.kill()
        assert int.from_bytes((tmp_path / "replay.inserts").read_bytes(), "little") == 51
