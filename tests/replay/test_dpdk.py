"""Replay in the network: a node and a relay over DPDK, as processes.

Over memif they need neither privileges nor huge pages. A skipped test says what is missing. Tests
over veth are in test_dpdk_wires.py.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import struct
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tests.replay.carriers import client_elsewhere, eventually
from tests.replay.dpdk import (
    LOAD,
    NODE,
    POLITE,
    RELAY,
    SCHEMA,
    Place,
    Started,
    address_of,
    check_rows,
    node,
    relay,
    rows_from,
    unprivileged,
    wait_until,
)  # fmt: skip

from hocket.replay import connect

# One after the other, because they share their build folder and the machine's cores.
pytestmark = pytest.mark.xdist_group("dpdk")


@pytest.fixture
def pair(place: Place) -> tuple[Started, Started]:
    """A node with two ports, and a relay at the first, both without privileges."""
    user = unprivileged()
    first, second = place.memif(0, "a", "server"), place.memif(1, "b", "server")
    serving = node(place, *first, *second, user=user)
    return serving, relay(place, *place.memif(0, "a", "client"), user=user)


def test_rows_cross_the_network(place: Place, pair: tuple[Started, Started]) -> None:
    with connect(address_of(place)) as replay:
        keys = replay.insert(rows_from(0, 300), np.linspace(0.1, 1.0, 300))  # 300 kB: many packets
        assert len(np.unique(keys, axis=0)) == 300
        for num in (1, 7, 256):
            batch = replay.sample(num)
            check_rows(batch.rows)
            assert replay.update(batch.keys, np.full(num, 0.5, np.float32)) == 0
        info = replay.info()
    assert info["size"] == info["inserts"] == 300
    assert info["samples"] == info["updates"] == 264
    assert info["dropped"] == info["refused"] == 0
    serving, _ = pair
    assert "forwarded 0 frames, dropped 0" in serving.stop()


def test_errors_come_back(place: Place, pair: tuple[Started, Started]) -> None:
    with connect(address_of(place)) as replay:
        replay.insert(rows_from(0, 3))
        with pytest.raises(ValueError, match="row 1"):
            replay.insert(rows_from(0, 3), np.array([1.0, -1.0, 1.0]))
        with pytest.raises(ValueError, match="too large"):
            replay.sample(100_000)
        assert replay.info()["refused"] == 2
        check_rows(replay.sample(2).rows)


def test_a_sample_waits_for_rows(place: Place, pair: tuple[Started, Started]) -> None:
    with connect(address_of(place)) as learner, connect(address_of(place)) as actor:
        with pytest.raises(TimeoutError, match=r"0\.2 s"):
            learner.sample(2, timeout=0.2)
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(learner.sample, 2)
            while not actor.info()["waiting"]:
                pass
            actor.insert(rows_from(0, 3))
            check_rows(asked.result(20).rows)
        assert actor.info()["waiting"] == 0 and actor.info()["timeouts"] == 1


def test_a_request_that_nobody_waits_for_is_forgotten(
    place: Place, pair: tuple[Started, Started]
) -> None:
    def header(op: int, rows: int = 0, schema: int = 0, timeout: int = 0) -> bytes:
        first = struct.pack("<IHHHHIQQ", 0x544B4F48, 1, op, 0, 0, rows, 7, schema)
        return first + struct.pack("<II24x", 0, timeout)

    schema = 14695981039346656037
    for letter in " ".join(SCHEMA).encode():
        schema = (schema ^ letter) * 1099511628211 % 2**64
    with socket.socket(socket.AF_UNIX) as stream, connect(address_of(place)) as replay:
        stream.connect(str(place.folder / "relay"))
        stream.sendall(header(3, rows=2, schema=schema, timeout=2**32 - 1))  # asks for a sample
        wait_until(lambda: replay.info()["waiting"] == 1)
        assert replay.info()["waiting"] == 1
        stream.sendall(header(11))
        wait_until(lambda: replay.info()["waiting"] == 0)
        assert replay.info()["waiting"] == 0
        replay.insert(rows_from(0, 3))
        assert replay.info()["samples"] == 0


def test_more_requests_than_may_be_under_way(place: Place, pair: tuple[Started, Started]) -> None:
    hello, num = struct.pack("<IHH56x", 0x544B4F48, 1, 1), 50
    with socket.socket(socket.AF_UNIX) as stream:
        stream.connect(str(place.folder / "relay"))
        stream.settimeout(20)
        stream.sendall(hello * num)
        said = b""
        while said.count(" ".join(SCHEMA).encode()) < num:
            more = stream.recv(10_000)
            assert more
            said += more


def test_several_clients_share_a_relay(place: Place, pair: tuple[Started, Started]) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(address_of(place))) for _ in range(3)]
        for i, client in enumerate(clients):
            client.insert(rows_from(10 * i, 10))
        for client in clients:
            for _, batch in zip(range(5), client.batches(16, ahead=3), strict=False):
                check_rows(batch.rows)
        info = clients[0].info()
    assert info["size"] == 30 and info["clients"] == 3


def test_a_client_that_is_killed_draws_nothing(place: Place, pair: tuple[Started, Started]) -> None:
    at = address_of(place)
    script = "for _ in range(3): threading.Thread(target=replay.sample, args=(1,)).start()"
    with connect(at) as watcher:
        with client_elsewhere(at, script) as process:
            eventually(lambda: watcher.info()["waiting"] == 3)
            process.kill()
            eventually(lambda: watcher.info()["waiting"] == 0)
            eventually(lambda: watcher.info()["clients"] == 1)
        watcher.insert(rows_from(0, 3))
        assert watcher.info()["samples"] == 0
        check_rows(watcher.sample(2).rows)


def test_foreign_frames_are_forwarded(place: Place) -> None:
    user = unprivileged()
    first, second = place.memif(0, "a", "server"), place.memif(1, "b", "server")
    middle = node(place, *first, *second, user=user)
    end = node(place, *place.memif(0, "b", "client"), address="10.0.0.3:7777", user=user)
    relay(place, *place.memif(0, "a", "client"), to="10.0.0.3:7777", user=user)
    with connect(address_of(place)) as replay:
        replay.insert(rows_from(0, 300))
        check_rows(replay.sample(256).rows)
    said = middle.stop()
    forwarded = re.search(r"answered 0 requests, forwarded (\d+) frames", said)
    assert forwarded, said
    assert int(forwarded[1]) > 400  # 300 rows of 1 kB there, 256 back, in packets of 1.4 kB
    # Three requests, and the relay's goodbye if there was time for it.
    assert re.search(r"answered [34] requests, forwarded 0 frames", end.stop())


def test_what_is_no_packet_is_dropped_and_counted(
    place: Place, pair: tuple[Started, Started]
) -> None:
    # From the node's other port.
    load = subprocess.run(
        [
            place.folder / LOAD, "--server", "10.0.0.2:7777", "--address", "10.0.0.9",
            "--schema", *SCHEMA, *POLITE, *place.memif(0, "b", "client"),
        ],
        input="noise 100 64\nping 64 3\n", capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert load.returncode == 0, load.stderr
    assert [json.loads(line)["count"] for line in load.stdout.splitlines()] == [64, 3]
    with connect(address_of(place)) as replay:
        info = replay.info()
    assert info["dropped"] == 64 and info["clients"] == 1
    assert "dropped 64" in pair[0].stop()


def test_a_node_that_is_killed_is_named(place: Place, pair: tuple[Started, Started]) -> None:
    serving, relaying = pair
    relaying.stop()
    relay(place, *place.memif(0, "a", "client"), patience=1.0, user=unprivileged())
    with connect(address_of(place)) as replay:
        replay.insert(rows_from(0, 3))
        serving.process.kill()
        before = time.monotonic()
        with pytest.raises(ConnectionError, match=r"dpdk://\S+:7777 did not answer for 1 s"):
            replay.sample(2)
        assert time.monotonic() - before < 10


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_node_may_be_started_again(place: Place, how: str) -> None:
    user = unprivileged()
    port = place.memif(0, "a", "server")
    serving = node(place, *port, user=user)
    relaying = relay(place, *place.memif(0, "a", "client"), user=user)
    for _ in range(2):
        with connect(address_of(place)) as replay:
            replay.insert(rows_from(0, 3))
            assert replay.info()["inserts"] == 3
        if how == "killed":
            serving.process.kill()
            serving.process.wait(10)
        else:
            serving.stop()
        serving = node(place, *port, user=user)
    relaying.stop()


def test_a_relay_refuses_what_is_no_message(place: Place, pair: tuple[Started, Started]) -> None:
    with socket.socket(socket.AF_UNIX) as stream:
        stream.connect(str(place.folder / "relay"))
        stream.sendall(b"GET / HTTP/1.1\r\n" * 4)
        stream.settimeout(10)
        said = b""
        while more := stream.recv(1000):
            said += more
        assert b"no message of a replay client" in said
    with connect(address_of(place)) as replay:
        assert replay.info()["size"] == 0


@pytest.mark.parametrize("program", [RELAY, NODE])
def test_a_file_that_is_no_socket_is_left(place: Place, program: str) -> None:
    """Connecting to it is refused, just as to a socket whose listener was killed."""
    file = place.folder / "a.sock"
    file.write_text("mine")
    if program == RELAY:
        options = ("--socket", str(file), "--address", "10.0.0.1", "--node", "10.0.0.2:7777")
        device = place.memif(0, "b", "server")
    else:
        options = ("--address", "10.0.0.2:7777", "--schema", *SCHEMA)
        device = place.memif(0, "a", "server")
    ran = subprocess.run(
        [place.folder / program, *options, *device], capture_output=True, text=True, timeout=30,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 1
    assert "a.sock: Address already in use" in ran.stderr
    assert file.read_text() == "mine"


def test_a_relay_ends_cleanly(place: Place, pair: tuple[Started, Started]) -> None:
    _, relaying = pair
    relaying.stop()
    assert not (place.folder / "relay").exists()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--addres", "1"), "there is no option --addres: there are --address"),
        (("--address", "nowhere"), "--address is an IPv4 address and a port"),
        (("--address", "10.0.0.2:7777"), "--schema says what a row is"),
        (("--address", "10.0.0.2:7777", "--schema", "obs"), "`obs` is no column"),
        (("--address", "10.0.0.2:7777", "--schema", "obs:float31"), "unknown dtype `float31`"),
        (("--address", "10.0.0.2:7777", "--schema", "o:int8", "--capacity", "-1"), "whole number"),
        (("--address", "10.0.0.2:7777", "--schema", "o:int8", "--sampler", "x"), "no sampler `x`"),
        (("--address", "10.0.0.2:7777", "--schema", "o:int8"), "a node has two ports"),
    ],
)
def test_a_wrong_command_line_is_explained(
    programs: Path, arguments: tuple[str, ...], why: str
) -> None:
    ran = subprocess.run(
        [programs / NODE, *arguments], capture_output=True, text=True, timeout=30, check=False
    )
    assert ran.returncode == 1
    assert why in ran.stderr
