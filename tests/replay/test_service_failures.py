"""If a server dies, closes, or is no server at all, clients that wait soon get an error."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.replay.carriers import (
    CARRIERS,
    CLOSED,
    CONNECTED,
    PATIENCE,
    SCHEMA,
    SILENCE,
    STREAMS,
    Elsewhere,
    Message,
    address,
    client_elsewhere,
    eventually,
    in_thread,
    numbers,
    rows,
    serving,
    serving_elsewhere,
    still_serves,
)

from hocket.replay import Table, connect, serve

each_carrier = pytest.mark.parametrize("carrier", CARRIERS)
TABLES = {"replay": {"schema": SCHEMA, "capacity": 100}}
LIMITED = {
    "replay": {"schema": SCHEMA, "capacity": 100, "samples_per_insert": 1.0, "tolerance": 10.0}
}


# Servers that end


@each_carrier
def test_a_server_is_killed_while_clients_wait(carrier: str) -> None:
    with serving_elsewhere(LIMITED) as server:
        at = address(server, carrier)
        clients = [connect(at) for _ in range(3)]
        clients[0].insert(rows(*range(10)))
        waiting = [
            in_thread(lambda: clients[0].insert(rows(*range(5)))),
            in_thread(lambda: clients[0].insert(rows(*range(5)))),
            in_thread(lambda: clients[1].insert(rows(*range(6)))),
        ]
        eventually(lambda: clients[2].info()["waiting"] == 3)
        server.kill()
        for thread, outcome in waiting:
            thread.join(PATIENCE)
            assert isinstance(outcome[0], ConnectionError), outcome
            assert f"the replay server at {_name(at)} {_gone(carrier)}" in str(outcome[0])
        for client in clients[: 3 if carrier in CONNECTED else 2]:
            for _ in range(2):
                with pytest.raises(ConnectionError, match=_gone(carrier)):
                    client.sample(1)
        if carrier in CONNECTED:
            with pytest.raises(ConnectionError, match=f"no replay server answers at {_name(at)}: "):
                connect(at)


# Each of these would take 5 s over UDP. One such server is above, others are in test_service.cpp.
each_connected = pytest.mark.parametrize("carrier", CONNECTED)


@each_connected
def test_a_server_is_killed_in_the_middle_of_large_replies(carrier: str) -> None:
    tables = {"replay": {"schema": "x:uint8:65536", "capacity": 10}}
    with serving_elsewhere(tables) as server:
        client = connect(address(server, carrier))
        client.insert({"x": np.zeros((10, 65536), np.uint8)})
        begun = threading.Event()

        def sample() -> None:
            while True:
                client.sample(200)
                begun.set()

        threads = [in_thread(sample) for _ in range(3)]
        assert begun.wait(PATIENCE)
        server.kill()
        for thread, outcome in threads:
            thread.join(PATIENCE)
            assert isinstance(outcome[0], ConnectionError), outcome


@each_connected
def test_a_server_is_closed_while_clients_wait(carrier: str) -> None:
    with serving(Table(SCHEMA, 10)) as server:
        client, watcher = (connect(address(server, carrier)) for _ in range(2))
        threads = [in_thread(lambda: client.sample(1)) for _ in range(3)]
        eventually(lambda: watcher.info()["waiting"] == 3)
        server.close()
        for thread, outcome in threads:
            thread.join(PATIENCE)
            assert isinstance(outcome[0], ConnectionError) and "is gone" in str(outcome[0])
        server.close()
        with pytest.raises(ConnectionError):
            connect(address(server, carrier))


@each_carrier
def test_a_client_is_closed_while_its_threads_wait(carrier: str) -> None:
    with serving(Table(SCHEMA, 10)) as server:
        client, watcher = (connect(address(server, carrier)) for _ in range(2))
        threads = [in_thread(lambda: client.sample(1)) for _ in range(3)]
        eventually(lambda: watcher.info()["waiting"] == 3)
        client.close()
        for thread, outcome in threads:
            thread.join(PATIENCE)
            assert isinstance(outcome[0], ConnectionError) and "was closed" in str(outcome[0]), (
                outcome
            )
        eventually(lambda: watcher.info()["waiting"] == 0)
        with pytest.raises(ConnectionError, match="was closed"):
            client.info()
        still_serves(server, watcher)


@each_carrier
def test_a_client_is_closed_while_large_replies_come(carrier: str) -> None:
    """No reply is written to arrays that are gone."""
    with serving(Table("x:uint8:65536", 10)) as server:
        connect(server.address).insert({"x": np.ones((10, 65536), np.uint8)})
        for _ in range(10):
            client, begun = connect(address(server, carrier)), threading.Barrier(4)

            def sample(client: Any = client, begun: Any = begun) -> None:
                begun.wait(PATIENCE)
                while True:
                    assert client.sample(100).rows["x"].all()

            threads = [in_thread(sample) for _ in range(3)]
            begun.wait(PATIENCE)
            client.close()
            for thread, outcome in threads:
                thread.join(PATIENCE)
                assert isinstance(outcome[0], ConnectionError), outcome
        assert connect(server.address).sample(50).rows["x"].all()


def test_a_table_is_closed_while_clients_wait() -> None:
    table = Table(SCHEMA, 10)
    with serving(table) as server:
        clients = [connect(address(server, carrier)) for carrier in CARRIERS]
        threads = [in_thread(lambda c=c: c.sample(1)) for c in clients]
        eventually(lambda: clients[0].info()["waiting"] == len(CARRIERS))
        table.close()
        for thread, outcome in threads:
            thread.join(PATIENCE)
            assert isinstance(outcome[0], ValueError) and "`replay` was closed" in str(outcome[0])


def _name(at: str) -> str:
    """The name of a server in messages."""
    return at if at.startswith(("tcp", "udp")) else at.partition("://")[2]


def _gone(carrier: str) -> str:
    return "is gone" if carrier in CONNECTED else SILENCE


# Interrupts


@each_carrier
@pytest.mark.parametrize("what", ["sample", "insert"])
def test_ctrl_c_ends_waiting(carrier: str, what: str) -> None:
    waits = {
        "sample": "replay.sample(1)",
        "insert": "[replay.insert({'obs': obs, 'action': action}) for _ in range(3)]",
    }
    script = f"""
obs, action = np.zeros((8, 4), np.float32), np.zeros(8, np.int32)
for _ in range(2):
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        {waits[what]}
    except KeyboardInterrupt:
        print("ended", flush=True)
while replay.info()["waiting"]: pass  # interrupted requests are forgotten
replay.clear()
replay.insert({{'obs': obs, 'action': action + 3}})
print(replay.sample(2).rows["action"].tolist(), flush=True)
"""
    options = LIMITED["replay"] if what == "insert" else TABLES["replay"]
    with (
        serving(Table(**options)) as server,
        client_elsewhere(address(server, carrier), script) as process,
    ):
        printed, problems = process.communicate(timeout=PATIENCE)
        assert printed == "ended\nended\n[3, 3]\n", problems


@pytest.mark.parametrize("carrier", STREAMS)
def test_a_reply_that_nobody_wants_is_read_to_its_end(carrier: str) -> None:
    """If a request is given up while its rows arrive, the next one still gets the right rows."""
    with serving(Table("x:uint8:65536", 10)) as server, connect(address(server, carrier)) as client:
        client.insert({"x": np.arange(10, dtype=np.uint8)[:, None].repeat(65536, 1)})
        for num in (1, 50, 400):
            for _ in range(5):
                asked = client._ask(num, None, None, 1.0)
                client.info()  # after it, so that some of it was read
                del asked
                asked = client._ask(num, None, None, 1.0)
                del asked
                gc.collect(0)
                batch = client.sample(20)
                np.testing.assert_array_equal(batch.rows["x"][:, 0], batch.keys[:, 0])
                np.testing.assert_array_equal(batch.rows["x"][:, -1], batch.keys[:, 0])


def test_python_may_end_while_threads_wait() -> None:
    script = """
for _ in range(3):
    threading.Thread(target=replay.sample, args=(1,), daemon=True).start()
while replay.info()["waiting"] < 3: pass
"""
    for carrier in CARRIERS:
        with (
            serving(Table(SCHEMA, 5)) as server,
            client_elsewhere(address(server, carrier), script) as process,
        ):
            printed = process.communicate(timeout=PATIENCE)
            assert (process.returncode, *printed) == (0, "", "")


def test_python_may_end_while_it_serves(tmp_path: Path) -> None:
    script = f"""
from hocket.replay import Table, serve, connect
server = serve(Table("x:int8", 4), unix={str(tmp_path / "s")!r}, tcp="127.0.0.1:0")
replay = connect(server.address)
print(replay.info()["clients"])
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"1\n", b"")
    assert not (tmp_path / "s").exists()


# Where to serve


def test_where_nobody_can_serve(tmp_path: Path) -> None:
    table = Table(SCHEMA, 5)
    long = "x" * 120
    with serving(table) as server:
        port = address(server, "tcp").rpartition(":")[2]
        packets = address(server, "udp").rpartition(":")[2]
        path = address(server, "unix").partition("://")[2]
        for options, kind, words in [
            ({}, ValueError, "a server needs an address"),
            ({"tcp": "localhost"}, ValueError, "write HOST:PORT"),
            ({"tcp": "localhost:99999"}, ValueError, "write HOST:PORT"),
            ({"tcp": f"127.0.0.1:{port}"}, OSError, f"127.0.0.1:{port}: Address already in use"),
            ({"tcp": "no.such.host.invalid:0"}, OSError, "cannot listen at no.such.host.invalid:0"),
            ({"udp": "localhost:x"}, ValueError, "udp='localhost:x': write HOST:PORT"),
            ({"udp": f"127.0.0.1:{packets}"}, OSError, f":{packets}: Address already in use"),
            ({"udp": "no.such.host.invalid:0"}, OSError, "cannot listen at udp://no.such.host"),
            ({"unix": path}, OSError, "another server does already"),
            ({"unix": f"/tmp/{long}"}, OSError, "has at most 107 bytes"),
            ({"unix": tmp_path / "no" / "folder"}, OSError, "folder: No such file or directory"),
            ({"unix": tmp_path, "max_bytes": 1}, ValueError, "max_bytes must be from"),
        ]:
            with pytest.raises(kind, match=words):
                serve(table, **options)
        still_serves(server)
    for tables, words in [
        ({}, "from 1 to 2"),
        ({"a b": table}, "`a b` cannot name a table"),
        ({"": table}, "cannot name a table"),
    ]:
        with pytest.raises(ValueError, match=words):
            serve(tables, unix=tmp_path / "s")
    assert not list(tmp_path.iterdir())


def test_a_socket_that_is_left_over_is_replaced_and_other_files_are_not(tmp_path: Path) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "left"))
    left.close()
    with serve(Table(SCHEMA, 5), unix=tmp_path / "left") as server:
        connect(server.address).insert(rows(1))
    (tmp_path / "mine").write_text("of value")
    with pytest.raises(OSError, match="mine: Address already in use"):
        serve(Table(SCHEMA, 5), unix=tmp_path / "mine")
    assert (tmp_path / "mine").read_text() == "of value"


def test_a_server_restarts_where_it_was(tmp_path: Path) -> None:
    options: dict[str, Any] = {"unix": tmp_path / "s"}
    for _ in range(3):
        with serve(Table(SCHEMA, 5), tcp="127.0.0.1:0", **options) as server:
            tcp = address(server, "tcp").partition("://")[2]
            client = connect(f"tcp://{tcp}")
            client.insert(rows(1))
        with serve(Table(SCHEMA, 5), tcp=tcp, **options) as server:
            assert len(connect(f"tcp://{tcp}")) == 0
            with pytest.raises(ConnectionError):
                client.info()


def test_a_server_restarts_and_clients_over_udp_go_on() -> None:
    """Idle clients do not notice. A request under way, which may have been carried out, fails."""
    with serve(Table(SCHEMA, 5), udp="127.0.0.1:0") as server:
        at = server.address
        client = connect(at)
        client.insert(rows(1, 2))
    with serve(Table(SCHEMA, 5), udp=at.partition("://")[2]):
        assert len(client) == 0
        client.insert(rows(3))
        assert numbers(client.sample(2)) == [3, 3]
    with (
        serve(Table("x:int8", 5), udp=at.partition("://")[2]),
        pytest.raises(ValueError, match="has the columns x:int8, and the client has others"),
    ):
        client.sample(1)
    limited = LIMITED["replay"]
    with serve(Table(**limited), udp=at.partition("://")[2]) as server:
        client.insert(rows(*range(10)))
        thread, outcome = in_thread(lambda: client.insert(rows(*range(5))))
        watcher = connect(at)
        eventually(lambda: watcher.info()["waiting"] == 1)
        eventually(lambda: watcher.info()["requests"] > 200)  # until the request was repeated
    with serve(Table(**limited), udp=at.partition("://")[2]):
        thread.join(PATIENCE)
        assert isinstance(outcome[0], ConnectionError), outcome
        assert "whether this request was carried out before is not known" in str(outcome[0])
        assert len(connect(at)) == 0


@pytest.mark.parametrize("carrier", ["tcp", "udp"])
def test_addresses_of_version_six(carrier: str) -> None:
    if not socket.has_ipv6 or not _has_loopback_six():
        pytest.skip("there is no IPv6 here")
    where: dict[str, Any] = {carrier: "[::1]:0"}
    with serve(Table(SCHEMA, 5), **where) as server:
        assert server.address.startswith(f"{carrier}://[::1]:")
        connect(server.address).insert(rows(1))


def _has_loopback_six() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as test:
        test.bind(("::1", 0))
        return True
    return False


# What to connect to


@pytest.mark.parametrize(
    "at",
    ["", "tcp", "tcp://", "http://localhost:80", "localhost:80", "shm:/run/x", "udp:/a:1"],
)
def test_addresses_that_are_none(at: str) -> None:
    with pytest.raises(ValueError, match="is no address of a replay server: write shm://PATH"):
        connect(at)


@pytest.mark.parametrize("at", ["tcp://localhost", "tcp://:80", "udp://h:x", "udp://h:65536"])
def test_addresses_without_a_port(at: str) -> None:
    with pytest.raises(ValueError, match="needs a host and a port"):
        connect(at)


def test_servers_that_are_not_there(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(ConnectionError, match=f"at tcp://127.0.0.1:{port}: Connection refused"):
            connect(f"tcp://127.0.0.1:{port}")
    with pytest.raises(ConnectionError, match=r"no replay server answers at tcp://no\.such"):
        connect("tcp://no.such.host.invalid:1")
    (tmp_path / "file").touch()
    for carrier in ("shm", "unix"):
        with pytest.raises(ConnectionError, match=r"none: No such file or directory\."):
            connect(f"{carrier}://{tmp_path}/none")
        with pytest.raises(ConnectionError, match="file: Connection refused"):
            connect(f"{carrier}://{tmp_path}/file")
        with pytest.raises(ConnectionError, match="a path of a socket has at most 107 bytes"):
            connect(f"{carrier}:///{'x' * 200}")


def test_ports_at_which_nobody_answers() -> None:
    """There may be no server, or one that never answers."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        at = f"udp://127.0.0.1:{silent.getsockname()[1]}"
        for _ in range(2):
            begun = time.monotonic()
            with pytest.raises(ConnectionError, match=f"at {at} gave no answer for 0.3 s"):
                connect(at, timeout=0.3)
            assert 0.3 <= time.monotonic() - begun < 3.0
            silent.close()
    with pytest.raises(ConnectionError, match=r"no replay server answers at udp://no\.such"):
        connect("udp://no.such.host.invalid:1")


def test_nobody_looks_for_longer_than_a_server_may_be_silent() -> None:
    """Over UDP, a learner that asks ahead and then compiles for long is answered afterwards."""
    table, empty = Table(SCHEMA, 10), Table(SCHEMA, 10)
    table.insert(rows(1))
    with serving({"replay": table, "empty": empty}) as server:
        clients = [connect(address(server, "udp"), table=name) for name in ("replay", "empty")]
        early, waits = (client._ask(2, None, None, PATIENCE) for client in clients)
        time.sleep(5.2)
        assert numbers(early()) == [1, 1]
        thread, outcome = in_thread(lambda: numbers(waits()))
        clients[0].info()
        assert not outcome
        empty.insert(rows(2))
        thread.join(PATIENCE)
        assert outcome == [[2, 2]]


@contextlib.contextmanager
def pretending(carrier: str, folder: Path, answer: bytes | None) -> Iterator[str]:
    """A false server that gives every client this answer, or none."""
    family = socket.AF_INET if carrier == "tcp" else socket.AF_UNIX
    with socket.socket(family) as listener:
        listener.bind(("127.0.0.1", 0) if carrier == "tcp" else str(folder / "s"))
        listener.listen()
        accepted = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    accepted.append(listener.accept()[0])
                    accepted[-1].recv(1)
                    if answer is not None:
                        accepted[-1].sendall(answer)

        thread, _ = in_thread(serve)
        port = listener.getsockname()[1] if carrier == "tcp" else 0
        yield f"tcp://127.0.0.1:{port}" if carrier == "tcp" else f"{carrier}://{folder}/s"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE)
        for connection in accepted:
            connection.close()


@each_connected
def test_servers_that_are_none(carrier: str, tmp_path: Path) -> None:
    http = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\n\r\nwhat do you mean? " * 3
    closed = Message(1, code=CLOSED, body=b"for a reason").pack()
    for answer, words in [
        (http, "is no replay server of this version"),
        (None, r"gave no answer for 0\.5 s"),
        (closed, "ended the connection: for a reason"),
        (Message(1, length=2**62).pack(), "too long"),
    ]:
        timeout = PATIENCE if answer else 0.5
        with (
            pretending(carrier, tmp_path, answer) as at,
            pytest.raises(ConnectionError, match=words),
        ):
            connect(at, timeout=timeout)
        (tmp_path / "s").unlink(missing_ok=True)


def test_many_connections_come_and_go() -> None:
    with serving_elsewhere(TABLES) as server:
        watcher, resources = connect(server.addresses[0]), []
        watcher.insert(rows(*range(10)))
        for _ in range(3):
            come_and_go(server)
            eventually(lambda: watcher.info()["clients"] == 1)
            resources.append((server.files(), server.regions(), server.resident()))
        assert resources[0][:2] == resources[-1][:2]
        assert resources[-1][2] < resources[0][2] + 2**23


def come_and_go(server: Elsewhere) -> None:
    clients = [connect(address(server, CARRIERS[i % len(CARRIERS)])) for i in range(60)]
    for client in clients:
        assert set(numbers(client.sample(5))) <= set(range(10))
    for client in clients[::2]:
        client.close()


def test_files_are_closed() -> None:
    """After the tests of this process, no file is left open."""
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with serving_elsewhere(TABLES) as server:
            connect(server.addresses[0]).insert(rows(*range(10)))
            come_and_go(server)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
