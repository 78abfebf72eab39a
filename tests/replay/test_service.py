"""A replay server gives the same as a table in this process, over every carrier."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.replay.carriers import (
    CARRIERS,
    PATIENCE,
    SCHEMA,
    STREAMS,
    address,
    client_elsewhere,
    eventually,
    in_thread,
    numbers,
    rows,
    same,
    serving,
    serving_elsewhere,
)

from hocket.replay import Client, Server, Table, connect, serve

each_carrier = pytest.mark.parametrize("carrier", CARRIERS)


@pytest.fixture
def pair(carrier: str) -> Iterator[tuple[Client, Table]]:
    """A client, and a local table like the one that it is connected to."""
    with (
        serving(Table(SCHEMA, 100, seed=3)) as server,
        connect(address(server, carrier)) as client,
    ):
        yield client, Table(SCHEMA, 100, seed=3)


# The same numbers


@each_carrier
def test_the_same_as_a_table(pair: tuple[Client, Table]) -> None:
    client, table = pair
    rng = np.random.default_rng(0)
    for step in range(60):
        num = int(rng.integers(1, 40))
        new, priority = rows(*rng.integers(0, 1000, num)), rng.random(num)
        given = None if step % 3 == 0 else priority
        keys = client.insert(new, given)
        np.testing.assert_array_equal(keys, table.insert(new, given))
        num = int(rng.integers(1, 130))
        uniforms = rng.random(num).astype(np.float32) if step % 4 == 0 else None
        batch = client.sample(num, uniforms=uniforms)
        same(batch, table.sample(num, uniforms=uniforms))
        assert client.size == len(table)
        assert client.total == np.float32(table.info()["total"])
        changed, priority = np.concatenate([keys, batch.keys]), rng.random(len(keys) + num)
        assert client.update(changed, priority) == table.update(changed, priority)
        if step == 40:
            client.clear()
            table.clear()
    info = client.info()
    assert {name: info[name] for name in table.info()} == table.info()
    assert len(client) == len(table) and client.capacity == 100
    assert client.schema == table.schema


@each_carrier
@pytest.mark.parametrize("ahead", [1, 2, 5, 32])
def test_batches_are_samples(pair: tuple[Client, Table], ahead: int) -> None:
    client, table = pair
    for access in pair:
        access.insert(rows(*range(50)), np.arange(50.0))
    kept = []
    for batch in itertools.islice(client.batches(7, ahead=ahead), 80):
        same(batch, table.sample(7))
        kept = [*kept, batch][-3:]
    gc.collect()
    # Batches asked for ahead are drawn even if nobody takes them.
    eventually(lambda: client.info()["samples"] == (80 + ahead) * 7)
    for _ in range(ahead):
        table.sample(7)
    same(client.sample(9), table.sample(9))


@each_carrier
def test_a_batch_is_written_over(pair: tuple[Client, Table]) -> None:
    client, table = pair
    for access in pair:
        access.insert(rows(1, 2, 3))
    one, other = client.sample(5), table.sample(5)
    obs = one.rows["obs"]
    for _ in range(10):
        one, other = client.sample(5, out=one), table.sample(5, out=other)
        same(one, other)
        assert one.rows["obs"] is obs
    same(client.sample(6, out=one), table.sample(6))
    with pytest.raises(ValueError, match="`out` must be a batch with the columns"):
        client.sample(5, out=Table("x:int8", 3)._batch(5))


MIXED = "a:bool b:bfloat16:3 c:uint8:7x5x3 d:float64 e:int8 f:complex64:2 g:float8_e4m3fn"


@each_carrier
@pytest.mark.parametrize("num", [1, 2, 3, 7, 63, 64, 65])
def test_columns_of_all_kinds(carrier: str, num: int) -> None:
    rng = np.random.default_rng(num)
    new = {
        "a": rng.random(num) < 0.5,
        "b": rng.random((num, 3)).astype(ml_dtypes.bfloat16),
        "c": rng.integers(0, 256, (num, 7, 5, 3)).astype(np.uint8),
        "d": rng.random(num),
        "e": rng.integers(-128, 128, num).astype(np.int8),
        "f": rng.random((num, 2)).astype(np.complex64),
        "g": rng.random(num).astype(ml_dtypes.float8_e4m3fn),
    }
    with serving(Table(MIXED, 100)) as server, connect(address(server, carrier)) as client:
        client.insert(new)
        batch = client.sample(num, uniforms=np.zeros(num))
        np.testing.assert_array_equal(batch.keys[:, 0], np.arange(num))
        for name, array in new.items():
            assert batch.rows[name].dtype == array.dtype
            np.testing.assert_array_equal(batch.rows[name], array)
            if carrier == "shm":
                assert batch.rows[name].ctypes.data % 64 == 0
        same(client.sample(num, uniforms=np.zeros(num), out=client._batch(num)), batch)


@each_carrier
def test_frames(carrier: str) -> None:
    options: dict[str, Any] = {"schema": "obs:uint8:5x5*3 x:int32", "capacity": 6, "num_frames": 9}
    table = Table(**options)
    with serving(Table(**options)) as server, connect(address(server, carrier)) as client:
        for i in range(12):
            frames = np.full((3, 5, 5), i, np.uint8)
            frame_numbers = client.add_frames(frames)
            np.testing.assert_array_equal(frame_numbers, table.add_frames(frames))
            assert frame_numbers.dtype == np.uint64
            new = {"obs": frame_numbers[None], "x": np.array([i], np.int32)}
            np.testing.assert_array_equal(client.insert(new), table.insert(new))
            same(client.sample(5), table.sample(5))
        assert client.sample(1).rows["obs"].shape == (1, 3, 5, 5)
        with pytest.raises(ValueError, match="frame"):
            client.insert({"obs": np.zeros((1, 3), np.uint64), "x": np.array([1], np.int32)})
        with pytest.raises(ValueError, match="from 1 to 9 frames"):
            client.add_frames(np.zeros((0, 5, 5), np.uint8))
        assert client.info()["frames"] == 9
        same(client.sample(5), table.sample(5))


@each_carrier
def test_messages_of_many_megabytes(carrier: str) -> None:
    """Regions grow for larger messages, and all sizes in between work."""
    table = Table("x:uint8:4096", 10_000, seed=5)
    with (
        serving(Table("x:uint8:4096", 10_000, seed=5)) as server,
        connect(address(server, carrier)) as client,
    ):
        rng = np.random.default_rng(1)
        kept = []
        for num in (1, 13, 200, 1000, 3, 3000, 9_000):
            new = {"x": rng.integers(0, 256, (num, 4096), np.uint8)}
            np.testing.assert_array_equal(client.insert(new), table.insert(new))
            for drawn in (num, 8):
                one, other = client.sample(drawn), table.sample(drawn)
                same(one, other)
                kept.append((one, other))
        for one, other in kept:
            same(one, other)


@pytest.mark.parametrize("carrier", STREAMS)
def test_more_than_a_server_keeps_for_a_client(carrier: str) -> None:
    """With three replies of 40 MB ahead, it stops reading, but answers all requests in the end."""
    with (
        serving(Table("x:uint8:65536", 10)) as server,
        connect(address(server, carrier)) as client,
    ):
        client.insert({"x": np.arange(10, dtype=np.uint8)[:, None].repeat(65536, 1)})
        batches = client.batches(640, ahead=4)
        for _ in range(2):
            next(batches)
            # Also large ones, while more comes than anyone has read.
            client.insert({"x": np.zeros((10, 65536), np.uint8)})
        for _ in range(4):
            assert next(batches).rows["x"].shape == (640, 65536)


def test_several_tables() -> None:
    tables = {"one": Table(SCHEMA, 10), "other": Table("x:int16", 5), "t-3.b_c": Table(SCHEMA, 3)}
    with serving(tables) as server:
        for carrier in CARRIERS:
            for name, table in tables.items():
                client = connect(address(server, carrier), table=name)
                assert client.schema == table.schema and client.capacity == table.capacity
                new = rows(1, 2) if name != "other" else {"x": np.zeros(2, np.int16)}
                client.insert(new)
                assert name in repr(client)
        assert [table.info()["inserts"] for table in tables.values()] == [8, 8, 8]
        with pytest.raises(
            ValueError, match=r"has the tables one, other, t-3.b_c: choose one with"
        ):
            connect(server.address)
        with pytest.raises(ValueError, match=r"unknown table `othr`. Did you mean `other`\?"):
            connect(server.address, table="othr")


def test_a_thousand_tables() -> None:
    """Their names do not fit into a small reply."""
    table = Table(SCHEMA, 3)
    names = [f"a-table-with-a-long-name-{i:05}" for i in range(4000)]
    with serving(dict.fromkeys(names, table)) as server:
        for carrier in CARRIERS:
            assert connect(address(server, carrier), table=names[-1]).capacity == 3


def test_the_process_of_the_server_uses_its_table_too() -> None:
    table = Table(SCHEMA, 10, min_size=2)
    with serving(table) as server:
        for carrier in CARRIERS:
            table.clear()
            client = connect(address(server, carrier))
            thread, outcome = in_thread(lambda c=client: numbers(c.sample(2, timeout=PATIENCE)))
            table.insert(rows(4, 4))
            thread.join(PATIENCE)
            assert outcome == [[4, 4]]
            thread, outcome = in_thread(lambda: table.sample(1, timeout=PATIENCE))
            client.insert(rows(5))
            thread.join(PATIENCE)
            assert len(outcome) == 1


@each_carrier
def test_a_client_in_another_process(carrier: str) -> None:
    script = """
obs = np.arange(8, dtype=np.float32).reshape(2, 4)
keys = replay.insert({"obs": obs, "action": np.arange(2, dtype=np.int32)}, [1.0, 3.0])
batch = replay.sample(4)
print(keys.tolist(), batch.rows["action"].tolist(), batch.probability.tolist(), flush=True)
print(replay.update(keys, [0.0, 0.0]), replay.sample(2).evenly, replay.info()["total"], flush=True)
replay.clear()
print(len(replay), flush=True)
"""
    table = Table(SCHEMA, 10, seed=9)
    keys = table.insert(rows(0, 1), [1.0, 3.0])
    batch = table.sample(4)
    with (
        serving(Table(SCHEMA, 10, seed=9)) as server,
        client_elsewhere(address(server, carrier), script) as process,
    ):
        printed, problems = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, problems
    assert printed == (
        f"{keys.tolist()} {batch.rows['action'].tolist()} {batch.probability.tolist()}\n"
        "0 True 0.0\n0\n"
    )


# Threads


@each_carrier
def test_one_thread_waits_and_another_inserts(carrier: str) -> None:
    with serving(Table(SCHEMA, 10)) as server, connect(address(server, carrier)) as client:
        for number in range(20):
            thread, outcome = in_thread(lambda: numbers(client.sample(1, timeout=PATIENCE)))
            eventually(lambda outcome=outcome: client.info()["waiting"] == 1 or outcome)
            client.insert(rows(number))
            thread.join(PATIENCE)
            assert outcome == [[number]]
            client.clear()
        assert client.info()["waiting"] == 0


@each_carrier
def test_threads_share_a_client(carrier: str) -> None:
    table = Table(SCHEMA, 10_000)
    with serving(table) as server, connect(address(server, carrier)) as client:
        client.insert(rows(0))

        def work(seed: int) -> int:
            rng = np.random.default_rng(seed)
            for _ in range(100):
                client.insert(rows(*rng.integers(0, 1000, 5)))
                batch = client.sample(int(rng.integers(1, 300)))
                numbers(batch)
                assert client.update(batch.keys, batch.rows["action"]) == 0
            return 100

        threads = [in_thread(lambda seed=seed: work(seed)) for seed in range(6)]
        for thread, outcome in threads:
            thread.join(PATIENCE)
            assert outcome == [100]
        assert table.info()["inserts"] == 3001


@each_carrier
def test_many_threads_wait_on_one_client(carrier: str) -> None:
    """Inserts still work, however many requests wait for rows. Too many are refused."""
    with serving(Table(SCHEMA, 200, min_size=150)) as server:
        client = connect(address(server, carrier))
        threads = [in_thread(lambda: client.sample(1, timeout=PATIENCE)) for _ in range(70)]
        eventually(
            lambda: client.info()["waiting"] + sum(len(outcome) for _, outcome in threads) == 70
        )
        client.insert(rows(*range(150)))
        for thread, outcome in threads:
            thread.join(PATIENCE)
            assert len(outcome) == 1
        refused = [outcome[0] for _, outcome in threads if isinstance(outcome[0], Exception)]
        assert len(refused) == (6 if carrier in STREAMS else 0)
        for error in refused:
            assert isinstance(error, ValueError) and "64 requests" in str(error)


def test_a_request_that_waits_holds_up_no_others() -> None:
    """Over UDP, where requests under way are numbered, many large ones come after it."""
    large, empty = Table("x:uint8:65536", 10), Table("x:uint8:65536", 10)
    ones = {"x": np.ones((1, 65536), np.uint8)}
    large.insert(ones)
    with serving({"large": large, "empty": empty}) as server:
        at = address(server, "udp")
        client = connect(at, table="large")
        waits = Client(client._connection, at, "empty", 1, str(empty.schema))
        threads = []
        for num in range(1, 21):
            threads.append(in_thread(lambda: waits.sample(1, timeout=PATIENCE)))
            eventually(lambda num=num: client.info()["waiting"] == num)
            for _ in range(20):
                client.info()
        for _ in range(5):  # 26 MB each, and a server keeps at most 64 MB for a client
            assert client.sample(400).rows["x"].all()
        waits.insert(ones)
        for thread, outcome in threads:
            thread.join(PATIENCE)
            assert outcome[0].rows["x"].all()


# Leases


def test_batches_keep_their_memory_while_they_live() -> None:
    with serving(Table(SCHEMA, 1000)) as server, connect(address(server, "shm")) as client:
        client.insert(rows(*range(1000)))
        kept = [client.sample(50) for _ in range(40)]
        copies = [{name: array.copy() for name, array in b.rows.items()} for b in kept]
        views = [batch.rows["obs"][3:9, :2] for batch in kept]
        del kept
        gc.collect()
        for _ in range(40):
            client.sample(50)
        for view, copy in zip(views, copies, strict=True):
            np.testing.assert_array_equal(view, copy["obs"][3:9, :2])


def test_slots_come_back() -> None:
    with serving_elsewhere({"replay": {"schema": SCHEMA, "capacity": 100}}) as server:
        client = connect(address(server, "shm"))
        client.insert(rows(*range(100)))
        addresses = set()
        for i in range(100):
            batch = client.sample(64)
            addresses.add(batch.keys.ctypes.data)
            cycle: list[Any] = [batch]
            cycle.append(cycle)
            del batch, cycle
            if i % 20 == 0:
                gc.collect()
        assert len(addresses) <= 22
        assert server.regions() == 1
        # So are those of requests that nobody waited for.
        for _ in range(100):
            next(client.batches(64, ahead=2))
        assert server.regions() == 1


def test_batches_outlive_their_client_and_its_server() -> None:
    with serving(Table(SCHEMA, 10)) as server:
        client = connect(address(server, "shm"))
        client.insert(rows(*range(10)))
        batch = client.sample(100)
        wanted = numbers(batch)
        client.close()
        assert numbers(batch) == wanted
        with pytest.raises(ConnectionError, match="was closed"):
            client.sample(1)
        del client
        gc.collect()
        assert numbers(batch) == wanted
    assert numbers(batch) == wanted
    batch.rows["action"][:] = 1


# Whatever is done


class Both(RuleBasedStateMachine):
    """Clients on all carriers in turn, and a table that must give the same."""

    server: Server
    clients: tuple[Client, ...]

    def __init__(self) -> None:
        super().__init__()
        self.table, self.next = Table(SCHEMA, 7, seed=1), 0
        served = Table(SCHEMA, 7, seed=1)
        self.serving = serving(served)
        self.server = self.serving.__enter__()
        self.clients = tuple(connect(address(self.server, c)) for c in CARRIERS)
        self.keys = np.zeros((1, 2), np.uint32)

    def teardown(self) -> None:
        for client in self.clients:
            client.close()
        self.serving.__exit__(None, None, None)

    def client(self) -> Client:
        self.next += 1
        return self.clients[self.next % len(CARRIERS)]

    def both(self, work: Callable[[Any], Any]) -> tuple[Any, Any]:
        return tuple(_attempt(work, access) for access in (self.client(), self.table))

    @rule(priority=st.lists(st.floats(0.0, 10.0, width=32), max_size=9), given=st.booleans())
    def insert(self, priority: list[float], given: bool) -> None:
        new = rows(*range(self.next, self.next + len(priority)))
        one, other = self.both(lambda x: x.insert(new, priority if given else None).tolist())
        assert one == other
        if isinstance(one, list):
            self.keys = np.concatenate([self.keys, np.array(one, np.uint32)])[-20:]

    @rule(num=st.integers(0, 20))
    def sample(self, num: int) -> None:
        one, other = self.both(lambda x: x.sample(num, timeout=0.0))
        if isinstance(one, str):
            assert one == other
        else:
            same(one, other)

    @rule(priority=st.lists(st.floats(-0.125, 9.0, width=32), max_size=5), seed=st.integers(0, 99))
    def update(self, priority: list[float], seed: int) -> None:
        keys = np.random.default_rng(seed).choice(self.keys, len(priority))
        one, other = self.both(lambda x: x.update(keys, priority))
        assert one == other

    @rule()
    def clear(self) -> None:
        self.both(lambda x: x.clear())

    @invariant()
    def as_many(self) -> None:
        one, other = self.both(lambda x: len(x))
        assert one == other


def _attempt(work: Callable[[Any], Any], access: Any) -> Any:
    try:
        return work(access)
    except (ValueError, TimeoutError) as error:
        return str(error)


TestBoth = Both.TestCase
TestBoth.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)


def test_a_server_in_a_program(tmp_path: Path) -> None:
    """The example of the docstring works."""
    with serve(Table(SCHEMA, 10), unix=tmp_path / "s") as server:
        assert server.addresses == (f"shm://{tmp_path}/s", f"unix://{tmp_path}/s")
        assert server.address == server.addresses[0]
        server.check()
        assert connect(server.address).capacity == 10
    assert not (tmp_path / "s").exists()
    server.close()
