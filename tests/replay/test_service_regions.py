"""Clients that share memory with a replay server and write nonsense to it, or die."""

from __future__ import annotations

import os
import resource
import signal
import socket
from collections.abc import Iterator

import pytest
from tests.replay.carriers import (
    BAD,
    BYE,
    CARRIERS,
    CONNECTED,
    FOREVER,
    HELLO,
    INFO,
    INSERT,
    MAP,
    OK,
    PATIENCE,
    SAMPLE,
    SCHEMA,
    STREAMS,
    Message,
    Raw,
    RawRegion,
    address,
    client_elsewhere,
    eventually,
    insert_message,
    rows,
    serving,
    serving_elsewhere,
    still_serves,
)

from hocket.replay import Server, Table, connect

each_carrier = pytest.mark.parametrize("carrier", CARRIERS)
each_stream = pytest.mark.parametrize("carrier", STREAMS)
LIMIT = 2**20


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(Table(SCHEMA, 100), max_bytes=LIMIT) as server:
        yield server
        server.check()


# A client that writes nonsense


def test_regions_that_are_refused(server: Server) -> None:
    with Raw(server, "unix") as raw:
        for options, words in [
            ({"slots": 0}, "from 1 to 64 slots"),
            ({"slots": 65}, "from 1 to 64 slots"),
            ({"request_bytes": 63}, "of at least 64 and 4096 bytes"),
            ({"reply_bytes": 4095}, "of at least 64 and 4096 bytes"),
            ({"request_bytes": 2**60, "size": 4096}, "is too large: at most 1048576"),
            ({"reply_bytes": 2**64 - 1, "size": 4096}, "is too large"),
            ({"size": 8576}, "is larger than its file"),
            ({"size": 0}, "is larger than its file"),
            ({"seals": False}, "with the seal F_SEAL_SHRINK"),
        ]:
            with RawRegion(raw, **options) as region:
                assert region.answer.code == BAD and words in region.answer.text, options
        reply = raw.ask(Message(MAP, bytes(24)))
        assert reply.code == BAD and "two files" in reply.text
        still_serves(server)
    with Raw(server, "tcp") as raw:
        reply = raw.ask(Message(MAP, bytes(24)))
        assert reply.code == BAD and "no operation 9 here" in reply.text


def test_files_that_are_no_bell(server: Server) -> None:
    """A bell must be a file that can be waited for, and one that does not block."""
    with Raw(server, "unix") as raw:
        with open("/dev/null") as null, RawRegion(raw) as good:
            with RawRegion(raw, files=[good.file, null.fileno()]) as region:
                assert region.answer.code == BAD and "cannot wait" in region.answer.text
            with RawRegion(raw, files=[null.fileno(), good.bell]) as region:
                assert region.answer.code == BAD
        still_serves(server)
        reader, writer = os.pipe()
        with RawRegion(raw) as good, RawRegion(raw, files=[good.file, reader]) as region:
            assert region.answer.code == OK
            os.write(writer, b"x")  # one byte, but a bell has eight
            still_serves(server)
        os.close(reader)
        os.close(writer)
        still_serves(server)


def test_too_many_regions_and_files(server: Server) -> None:
    with Raw(server, "unix") as raw:
        regions = [RawRegion(raw) for _ in range(33)]
        assert [region.answer.code for region in regions] == [OK] * 32 + [BAD]
        assert "at most 32 regions" in regions[-1].answer.text
        for region in regions:
            region.__exit__()
        before = len(os.listdir("/proc/self/fd"))
        files = [os.eventfd(0) for _ in range(10)]
        for _ in range(50):
            socket.send_fds(raw.socket, [Message(INFO).pack()], files)
            assert raw.receive().code == OK
        for file in files:
            os.close(file)
        assert len(os.listdir("/proc/self/fd")) <= before + 4
        still_serves(server)


def test_nonsense_in_shared_memory(server: Server) -> None:
    watcher = connect(address(server, "tcp"))

    def dropped() -> int:
        return watcher.info()["dropped"]

    with Raw(server, "unix") as raw, RawRegion(raw) as region:
        region.put(4, 2**32 - 1, 77)  # slots that do not exist
        eventually(lambda: dropped() == 3)
        message = Message(SAMPLE, rows=1, timeout_ms=FOREVER)
        region.write(1, message.pack())
        region.put(1)
        eventually(lambda: watcher.info()["waiting"] == 1)
        region.put(1, 1)  # the slot is under way already
        eventually(lambda: dropped() == 5)
        # The server does not read again what it has checked.
        region.write(1, Message(SAMPLE, rows=2**32 - 1, length=2**60, magic=0).pack())
        watcher.insert(rows(3))
        reply = region.reply(1)
        assert (reply.code, reply.rows) == (OK, 1)
        for length in (4096 - 63, 2**60, 2**64 - 1):
            reply = region.ask(2, Message(INSERT, rows=1, length=length))
            assert reply.code == BAD and "larger than its slot" in reply.text
        reply = region.ask(2, Message(INFO, magic=5))
        assert reply.code == BAD and "no message of a replay client" in reply.text
        reply = region.ask(2, Message(SAMPLE, rows=200))
        assert reply.code == BAD and "too large for this connection" in reply.text
        reply = region.ask(0, Message(BYE))
        assert reply.code == OK
        before = dropped()
        for advance in (2**63, 65, 2**64 - 1):  # far ahead, and behind
            region.put(advance=advance)
            eventually(lambda before=before: dropped() > before)
            before = dropped()
        assert region.ask(3, insert_message(1.0)).code == OK
        still_serves(server)


def test_reasons_that_are_longer_than_a_slot() -> None:
    schema = " ".join(f"column_{i}:float32" for i in range(1000))
    with serving({"replay": Table(schema, 2)}) as server:
        with Raw(server, "unix") as raw, RawRegion(raw) as region:
            reply = region.ask(0, Message(INFO, schema=1))
            assert reply.code == BAD and reply.text.startswith("table `replay` has the columns")
            assert reply.length == 4096 - 64
            reply = region.ask(0, Message(HELLO))
            assert reply.code == BAD and "too large for this connection" in reply.text
        for carrier in CARRIERS:
            assert len(connect(address(server, carrier)).schema.columns) == 1000


# Clients that die


@each_carrier
@pytest.mark.parametrize("how", ["holds", "waits", "inserts"])
def test_clients_that_are_killed(carrier: str, how: str) -> None:
    scripts = {
        "holds": "kept = [replay.sample(1000) for _ in range(20)]\nprint('now', flush=True)\n"
        "sys.stdin.read()",
        "waits": "threading.Timer(0.0, print, ('now',), {'flush': True}).start()\n"
        "replay.clear()\nreplay.sample(5)",
        "inserts": "print('now', flush=True)\nobs = np.zeros((50, 4), np.float32)\n"
        "while True: replay.insert({'obs': obs, 'action': np.zeros(50, np.int32)})",
    }
    tables = {"replay": {"schema": SCHEMA, "capacity": 100}}
    with serving_elsewhere(tables) as server:
        watcher = connect(address(server, "tcp"))
        watcher.insert(rows(*range(100)))
        before = server.files(), server.regions()
        for _ in range(2):
            with client_elsewhere(address(server, carrier), scripts[how]) as process:
                assert process.stdout and process.stdout.readline() == "now\n"
                if how == "waits":
                    eventually(lambda: watcher.info()["waiting"] == 1)
                process.send_signal(signal.SIGKILL)
                process.wait(PATIENCE)
                if carrier in CONNECTED:
                    eventually(lambda: watcher.info()["clients"] == 1)
                    assert watcher.info()["waiting"] == 0
                else:  # the server only notices when the client was silent for a minute
                    assert watcher.info()["clients"] > 1
                    assert watcher.info()["waiting"] == (how == "waits")
                assert (server.files(), server.regions()) == before
            watcher.insert(rows(*range(100)))
            eventually(lambda: watcher.info()["waiting"] == 0)
        still_serves(server, watcher)


def test_a_client_that_never_reads_holds_up_nobody(server: Server) -> None:
    watcher = connect(server.address)
    watcher.insert(rows(*range(100)))
    with Raw(server, "tcp") as raw:
        raw.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):  # the server reads nothing from it any more
            raw.send(Message(SAMPLE, rows=20_000).pack() * 1_000_000)
        for _ in range(100):
            assert len(watcher.sample(100).keys) == 100
        still_serves(server, watcher)
    eventually(lambda: watcher.info()["clients"] == 1)


def test_no_more_files_can_be_opened() -> None:
    tables = {"replay": {"schema": SCHEMA, "capacity": 100}}
    with serving_elsewhere(tables) as server:
        watcher = connect(address(server, "shm"))
        most = server.files() + 4
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (most, most))
        raws = [Raw(server, "tcp") for _ in range(20)]
        assert sum(raw.is_answered(Message(HELLO)) for raw in raws) == 4
        watcher.insert(rows(1))
        assert watcher.info()["refused"] >= 16
        for raw in raws:
            raw.socket.close()
        eventually(lambda: watcher.info()["clients"] == 1)
        connect(address(server, "tcp")).insert(rows(1))


def test_too_many_clients() -> None:
    """The limit holds for connections, and for clients over UDP."""
    with serving(Table(SCHEMA, 5), max_clients=3) as server:
        packets = [connect(address(server, "udp")) for _ in range(3)]
        clients = [connect(address(server, carrier)) for carrier in CONNECTED]
        for carrier in CARRIERS:
            with pytest.raises(ConnectionError, match="this server has 3 clients already"):
                connect(address(server, carrier))
        clients.pop().close()
        eventually(lambda: clients[0].info()["clients"] == 5)
        connect(server.address).insert(rows(1))
        packets.pop().close()
        connect(address(server, "udp")).insert(rows(1))
