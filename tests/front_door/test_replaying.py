"""`hocket replay`: servers that are started, ended and killed as a person would."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.front import Hocket

from hocket.replay import Table, connect, serve

SCHEMA = ["--schema", "x:float32:2", "y:int32"]


def rows(num: int, first: int = 0) -> dict[str, np.ndarray]:
    y = np.arange(first, first + num, dtype=np.int32)
    return {"x": np.stack([y, -y], axis=1).astype(np.float32), "y": y}


class Started:
    """A process that runs `hocket replay serve`."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hocket", "replay", "serve", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.before = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("serving"):
                self.said = line
                self.addresses = re.findall(r"\w+://[^,\s]+", line)
                return
            self.before.append(line)
        raise AssertionError(self.before)

    def end(self, how: signal.Signals) -> tuple[int, str]:
        self.process.send_signal(how)
        out, _ = self.process.communicate(timeout=60)
        return self.process.returncode, out


@pytest.fixture
def start() -> Iterator[Any]:
    started: list[Started] = []

    def begin(*arguments: str) -> Started:
        started.append(Started(*arguments))
        return started[-1]

    yield begin
    for server in started:
        server.process.kill()
        server.process.communicate()


def test_a_server_is_started_and_ended(start: Any, tmp_path: Path) -> None:
    server = start(*SCHEMA, "--port", "0", "--unix", str(tmp_path / "s"), "--capacity", "100")
    assert [a.partition("://")[0] for a in server.addresses] == ["shm", "unix", "tcp"]
    for address in server.addresses:
        with connect(address) as client:
            client.insert(rows(5))
            assert client.sample(3).rows["x"].shape == (3, 2)
    assert len(connect(server.addresses[0])) == 15
    code, out = server.end(signal.SIGINT)
    assert (code, out) == (0, "")
    assert not (tmp_path / "s").exists()


def test_a_column_of_one_number_has_no_shape(start: Any, hocket: Hocket) -> None:
    """It may end with a colon, as if the shape in `name:dtype:shape` were left empty."""
    server = start("--schema", "obs:float32:2", "action:int32:", "--port", "0", "--capacity", "9")
    assert server.said.startswith("serving replay (obs float32[2], action int32) at tcp://")
    with connect(server.addresses[0]) as client:
        assert str(client.schema) == "obs:float32:2 action:int32"
        client.insert({"obs": np.ones((3, 2), np.float32), "action": np.arange(3, dtype=np.int32)})
        assert client.sample(4).rows["action"].shape == (4,)
    assert server.end(signal.SIGINT) == (0, "")
    helped = " ".join(re.sub("[│|]", "", hocket.well("replay", "serve", "--help")).split())
    assert "or name:dtype for a single number" in helped


def test_a_server_for_packets(start: Any, hocket: Hocket) -> None:
    server = start(*SCHEMA, "--port", "-1", "--udp-port", "0", "--capacity", "100")
    (address,) = server.addresses
    assert re.fullmatch(r"udp://127\.0\.0\.1:[1-9]\d*", address)
    with connect(address) as client:
        client.insert(rows(5))
        assert client.sample(300).rows["x"].shape == (300, 2)
    assert "5 of 100" in hocket.well("replay", "info", address, "--seconds", "0")
    port = address.rpartition(":")[2]
    done = hocket("replay", "serve", *SCHEMA, "--port", "-1", "--udp-port", port)
    assert done.code == 2 and f"cannot listen at {address}: Address already in use" in done.err
    assert server.end(signal.SIGINT) == (0, "")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_what_was_saved_comes_back_and_what_is_missing_is_told(
    start: Any, tmp_path: Path, how: signal.Signals
) -> None:
    arguments = [*SCHEMA, "--port", "0", "--capacity", "100", "--snapshot-dir", str(tmp_path)]
    server = start(*arguments)
    client = connect(server.addresses[0])
    client.insert(rows(20))
    client.save()
    client.insert(rows(7, first=20))
    _, out = server.end(how)
    assert ("saved" in out) == (how == signal.SIGTERM)
    with pytest.raises(ConnectionError, match="is gone"):
        client.sample(1)
    again = start(*arguments)
    (told,) = again.before
    if how == signal.SIGTERM:
        assert "27 rows restored" in told and "nothing is missing" in told
    else:
        assert "20 rows restored" in told
        assert "7 rows inserted after it are missing" in told
    assert len(connect(again.addresses[0])) == (27 if how == signal.SIGTERM else 20)


def test_killed_while_inserting_and_saving(start: Any, tmp_path: Path) -> None:
    arguments = [*SCHEMA, "--port", "0", "--capacity", "5000", "--snapshot-dir", str(tmp_path)]
    saved = 0
    for k in range(3):
        server = start(*arguments, "--snapshot-every", "0.02")
        client = connect(server.addresses[0])
        first = client.info()["inserts"]
        assert first >= saved
        acknowledged = []

        def insert(
            client: Any = client, first: int = first, told: list[int] = acknowledged
        ) -> None:
            try:
                while True:
                    client.insert(rows(50, first=first + 50 * len(told)))
                    told.append(50)
            except ConnectionError:
                pass

        thread = threading.Thread(target=insert)
        thread.start()
        while len(acknowledged) < 100 + 30 * k:
            pass
        connect(server.addresses[0]).save()
        saved = first + 50 * (100 + 30 * k)
        server.end(signal.SIGKILL)  # in the middle of an insert, and perhaps of a snapshot
        thread.join(60)
        table = Table.restore(tmp_path / "replay.replay")
        inserts = table.info()["inserts"]
        assert inserts >= saved
        there = table.sample(5000, uniforms=np.zeros(5000)).rows["y"]
        assert set(there) <= set(range(inserts - 5000, inserts))
        tally, _ = np.frombuffer((tmp_path / "replay.inserts").read_bytes(), np.uint64)
        assert sum(acknowledged) <= tally - first <= sum(acknowledged) + 50


def test_clearing_loses_nothing_that_is_not_lost(start: Any, tmp_path: Path) -> None:
    arguments = [*SCHEMA, "--port", "0", "--capacity", "100", "--snapshot-dir", str(tmp_path)]
    server = start(*arguments)
    client = connect(server.addresses[0])
    client.insert(rows(20))
    client.save()
    client.clear()
    client.insert(rows(5))
    server.end(signal.SIGTERM)
    again = start(*arguments)
    assert "5 rows restored" in again.before[0] and "nothing is missing" in again.before[0]
    connect(again.addresses[0]).insert(rows(3))
    again.end(signal.SIGKILL)
    (told,) = start(*arguments).before
    assert "5 rows restored" in told and "3 rows inserted after it are missing" in told


def test_killed_before_the_first_snapshot(start: Any, tmp_path: Path) -> None:
    arguments = [*SCHEMA, "--port", "0", "--capacity", "100", "--snapshot-dir", str(tmp_path)]
    server = start(*arguments)
    connect(server.addresses[0]).insert(rows(7))
    server.end(signal.SIGKILL)
    (told,) = start(*arguments).before
    assert "7 inserted rows are missing: there is no snapshot of them" in told


def test_a_corrupt_snapshot_is_refused_by_name(hocket: Hocket, tmp_path: Path) -> None:
    file = tmp_path / "replay.replay"
    table = Table("x:float32:2 y:int32", 100)
    table.insert(rows(50))
    table.save(file)
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    file.write_bytes(damaged)
    done = hocket("replay", "serve", *SCHEMA, "--capacity", "100", "--snapshot-dir", str(tmp_path))
    assert done.code == 2 and str(file) in done.err


def test_several_tables_of_a_file(start: Any, tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text(
        '[replay]\nschema = "x:float32:2 y:int32"\ncapacity = 10\n'
        '[queue]\nschema = "z:uint8"\nsampler = "oldest"\nmax_times_sampled = 1\ncapacity = 5\n'
    )
    server = start("--tables", str(tmp_path / "t.toml"), "--port", "0")
    queue = connect(server.addresses[0], table="queue")
    queue.insert({"z": np.arange(3, dtype=np.uint8)})
    assert list(queue.sample(3).rows["z"]) == [0, 1, 2]
    with pytest.raises(ValueError, match="has the tables replay, queue: choose one with"):
        connect(server.addresses[0])
    with pytest.raises(ValueError, match=r"qeue.*queue"):
        connect(server.addresses[0], table="qeue")


def test_info(hocket: Hocket) -> None:
    table = Table("x:float32:2 y:int32", 100, min_size=10, samples_per_insert=4, tolerance=1_000)
    with serve(table, tcp="127.0.0.1:0") as server:
        table.insert(rows(20))
        table.sample(8)
        text = hocket.well("replay", "info", server.address, "--seconds", "0.01")
        assert "x:float32:2 y:int32" in text and "20 of 100" in text
        assert "20 (0 a second)" in text
        assert "from 10 rows on" in text and "4 samples per insert, at 72 of -960 to 1,040" in text
        out = hocket.well("replay", "info", server.address, "--seconds", "0", "--format", "json")
        info = json.loads(out)
        assert info["table"] == "replay" and info["samples"] == 8 and info["clients"] == 1
        assert "inserts_per_second" not in info


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["swerve"], "unknown action of `hocket replay` `swerve`. Did you mean `serve`?"),
        (["serve"], "which columns does table `replay` have? Give --schema"),
        (["serve", "--schema", "x:flat32"], "unknown dtype `flat32`"),
        (["serve", "--schema", "x"], "name:dtype for one number per row, such as `action:int32`"),
        (["serve", "--schema", "x:int32:x"], "`x:int32:x` is no column"),
        (["serve", *SCHEMA, "--port", "70000"], "from 0 to 65535"),
        (["serve", *SCHEMA, "--port", "-1"], "a server needs an address"),
        (["serve", *SCHEMA, "--udp-port", "65536"], "--udp-port must be from 0 to 65535, or -1"),
        (["serve", *SCHEMA, "--host", "nowhere.invalid"], "cannot listen at nowhere.invalid:7777"),
        (
            ["serve", *SCHEMA, "--snapshot-every", "-1"],
            "--snapshot-every must be at least 0 seconds, found -1",
        ),
        (["serve", *SCHEMA, "--name", "a b"], "`a b` cannot name a table"),
        (["serve", *SCHEMA, "--min-size", "9", "--capacity", "8"], "never holds the 9"),
        (["serve", *SCHEMA, "--samples-per-insert", "2"], "needs a tolerance"),
        (["serve", *SCHEMA, "--tables", "t.toml"], "leave --schema out"),
        (["serve", "--tables", "none.toml"], "No such file"),
        (["info", "http://here"], "`http://here` is no address of a replay server"),
        (["info", "tcp://127.0.0.1"], "needs a host and a port"),
        (["info", "udp://here:x"], "needs a host and a port: udp://HOST:PORT"),
        (["info", "udp://nowhere.invalid:1"], "answers at udp://nowhere.invalid:1: "),
        (["info", "shm:///nowhere/s"], "no replay server answers at /nowhere/s"),
        (["info", "tcp://127.0.0.1:1"], "no replay server answers at tcp://127.0.0.1:1"),
    ],
)
def test_mistakes(hocket: Hocket, arguments: list[str], told: str) -> None:
    done = hocket("replay", *arguments)
    assert done.code == 2 and told in done.err and "Traceback" not in done.err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = ", "t.toml is not a TOML file"),
        ("", "t.toml has no table"),
        ("capacity = 3", "`capacity` is not a section"),
        ('[a]\nschema = "x:int32"\ncapasity = 3', "[a]: unknown option `capasity`"),
        ("[a]\ncapacity = 3", "which columns does table `a` have?"),
        ('[a]\nschema = ["x:int32", "y:flat32"]', "unknown dtype `flat32`"),
        ('[a]\nschema = "x:int32"\nmin_size = "5"', "[a]: `min_size` cannot be '5'"),
        ('[a]\nschema = "x:int32"\ntolerance = "5"', "[a]: `tolerance` cannot be '5'"),
    ],
)
def test_mistakes_in_a_file(hocket: Hocket, text: str, told: str) -> None:
    Path("t.toml").write_text(text)
    done = hocket("replay", "serve", "--tables", "t.toml")
    assert done.code == 2 and told in done.err


def test_another_table_than_the_snapshot_is_refused(hocket: Hocket, tmp_path: Path) -> None:
    Table("x:float32:2 y:int32", 100).save(tmp_path / "replay.replay")
    done = hocket("replay", "serve", *SCHEMA, "--snapshot-dir", str(tmp_path))
    assert done.code == 2
    assert "holds a table with capacity 100, but you asked for 1000000" in done.err
    done = hocket(
        "replay", "serve", *SCHEMA, "--snapshot-dir", str(tmp_path), "--capacity", "100",
        "--sampler", "uniform",
    )  # fmt: skip
    assert done.code == 2
    assert "with sampler prioritized, but you asked for uniform" in done.err


def test_a_port_in_use_is_refused(hocket: Hocket) -> None:
    with serve(Table("x:int32", 10), tcp="127.0.0.1:0") as server:
        port = server.address.rpartition(":")[2]
        done = hocket("replay", "serve", *SCHEMA, "--port", port)
    assert (
        done.code == 2 and f"cannot listen at 127.0.0.1:{port}: Address already in use" in done.err
    )


def test_help_says_what_there_is(hocket: Hocket) -> None:
    assert "serve" in hocket.well("replay")
    assert "--snapshot-dir" in hocket.well("replay", "serve", "--help")
    assert "--seconds" in hocket.well("replay", "info", "--help")
