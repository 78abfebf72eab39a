"""Whatever a client sends, a replay server says what is wrong, and goes on."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.replay.carriers import (
    BAD,
    BYE,
    CARRIERS,
    CLOSED,
    FOREVER,
    FRAMES,
    HAS_NUMBERS,
    HELLO,
    INFO,
    INSERT,
    OK,
    REPLY,
    SAMPLE,
    SAVE,
    SCHEMA,
    STREAMS,
    TIMEOUT,
    UPDATE,
    Message,
    Raw,
    RawPackets,
    RawRegion,
    address,
    eventually,
    insert_message,
    is_served,
    numbers,
    packet,
    rows,
    schema_hash,
    serving,
    serving_elsewhere,
    still_serves,
)
from tests.replay.dpdk import Place, address_of, node, relay, unprivileged

from hocket.replay import Client, Server, Table, connect

each_carrier = pytest.mark.parametrize("carrier", CARRIERS)
each_client = pytest.mark.parametrize(
    "carrier", [*CARRIERS, pytest.param("dpdk", marks=pytest.mark.xdist_group("dpdk"))]
)
each_stream = pytest.mark.parametrize("carrier", STREAMS)
LIMIT = 2**20


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(Table(SCHEMA, 100), max_bytes=LIMIT) as server:
        yield server
        server.check()


@pytest.fixture
def client(carrier: str, request: pytest.FixtureRequest) -> Iterator[Client]:
    if carrier == "dpdk":
        place = request.getfixturevalue("place")
        at = start_node(place)
        with connect(at) as client:
            yield client
            is_served(client)
        with connect(at) as client:
            is_served(client)
        return
    server = request.getfixturevalue("server")
    with connect(address(server, carrier)) as client:
        yield client
        still_serves(server, client)


def start_node(place: Place) -> str:
    """Start a node with a table like the server's, and a relay; return the relay's address."""
    user = unprivileged()
    options: dict[str, Any] = {"schema": tuple(SCHEMA.split()), "capacity": 100, "user": user}
    node(place, "--max-bytes", str(LIMIT), *place.memif(0, "a", "server"), **options)
    relay(place, *place.memif(0, "a", "client"), user=user)
    return address_of(place)


# A client that behaves


@each_client
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -1e-6, 1e30], ids=str)
def test_priorities_that_are_none(client: Client, bad: float) -> None:
    keys = client.insert(rows(0, 1, 2), [1.0, 2.0, 3.0])
    before = client.info()
    words = "priorities are from 0 to 1e[+]29, found .* in row 1"
    with pytest.raises(ValueError, match=words):
        client.insert(rows(3, 4, 5), [1.0, bad, bad])
    with pytest.raises(ValueError, match=words):
        client.update(keys, [9.0, bad, 9.0])
    after = client.info()
    for name in ("size", "inserts", "updates", "total", "highest"):
        assert after[name] == before[name]
    assert after["refused"] == before["refused"] + 2
    chance = dict(zip(numbers(batch := client.sample(60)), batch.probability, strict=True))
    assert chance == pytest.approx({0: 1 / 6, 1: 2 / 6, 2: 3 / 6})


@each_client
def test_priorities_that_are_all_zero(client: Client) -> None:
    client.insert(rows(*range(10)), np.zeros(10))
    batch = client.sample(100)
    assert batch.evenly and set(numbers(batch)) == set(range(10))
    assert batch.probability == pytest.approx(np.full(100, 0.1))
    client.insert(rows(10), [1.0])
    batch = client.sample(5)
    assert not batch.evenly and numbers(batch) == [10] * 5


@each_client
def test_arrays_that_do_not_fit(client: Client) -> None:
    good = rows(1, 2)
    for new, words in [
        ({"obs": good["obs"]}, f"has the columns {SCHEMA}, found obs:float32:4"),
        ({**good, "x": good["action"]}, "found obs:float32:4 action:int32 x:int32"),
        ({**good, "obs": good["obs"].astype(np.float64)}, "`obs` must be a batch of float32"),
        ({**good, "obs": good["obs"][:, :3]}, r"`obs` must be a batch of float32 \[4\], found"),
        ({**good, "action": good["action"][:1]}, "all columns must have the same number of rows"),
    ]:
        with pytest.raises(ValueError, match=words):
            client.insert(new)
    with pytest.raises(ValueError, match="priority must be one number for each of 2 rows"):
        client.insert(good, [1.0])
    assert client.info()["inserts"] == 0


@each_client
def test_a_client_of_another_schema(client: Client) -> None:
    """The server was replaced by one with other tables since the client connected."""
    wrong = Client(client._connection, client.address, "replay", 0, "x:int8")
    with pytest.raises(ValueError, match=f"`replay` has the columns {SCHEMA}, and the client"):
        wrong.insert({"x": np.zeros(1, np.int8)})
    wrong = Client(client._connection, client.address, "none", 5, SCHEMA)
    with pytest.raises(ValueError, match="there is no table 5"):
        wrong.sample(1)


@each_client
def test_empty_requests(client: Client) -> None:
    with pytest.raises(ValueError, match="there are no rows to insert"):
        client.insert(rows())
    with pytest.raises(ValueError, match=r"from 1 to 2\*\*30 rows, found 0"):
        client.sample(0)
    with pytest.raises(ValueError, match="there are no priorities to update"):
        client.update(np.zeros((0, 2), np.uint32), [])
    with pytest.raises(ValueError, match="this table has no column of frames"):
        client.add_frames(np.zeros((1, 4), np.float32))


@each_client
def test_requests_that_are_too_large(client: Client) -> None:
    with pytest.raises(ValueError, match="at once into a table with a capacity of 100"):
        client.insert(rows(*range(101)))
    with pytest.raises(ValueError, match="is too large"):
        client.insert(rows(*range(60_000)))
    client.insert(rows(1))
    for num in (40_000, 2**20):
        with pytest.raises(ValueError, match="is too large"):
            client.sample(num, timeout=0.0)
    with pytest.raises(ValueError, match="is too large"):
        client.update(np.zeros((200_000, 2), np.uint32), np.zeros(200_000))
    assert numbers(client.sample(3)) == [1, 1, 1]
    assert len(client.sample(30_000).keys) == 30_000


@each_client
def test_too_few_rows(client: Client) -> None:
    with pytest.raises(TimeoutError, match=r"not within 0.05 s: there are 0 rows, and sampling"):
        client.sample(1, timeout=0.05)
    with pytest.raises(ValueError, match="a timeout must be None or at least 0"):
        client.sample(1, timeout=-1.0)
    info = client.info()
    assert (info["timeouts"], info["waiting"]) == (1, 0)


@each_client
def test_keys_of_rows_that_are_gone(client: Client) -> None:
    keys = client.insert(rows(*range(100)))
    client.insert(rows(*range(30)))
    assert client.update(keys, np.ones(100)) == 30
    unknown = np.array([[2**32 - 1, 1], [0, 2**32 - 1], [100, 1]], np.uint32)
    assert client.update(unknown, [1.0, 1.0, 1.0]) == 3
    assert client.info()["stale_keys"] == 33
    with pytest.raises(ValueError, match="keys must be an array uint32"):
        client.update(np.zeros(4), [1.0])


@each_client
@pytest.mark.parametrize("bad", [1.0, -0.1, np.nan])
def test_uniforms_that_are_none(client: Client, bad: float) -> None:
    client.insert(rows(1))
    with pytest.raises(ValueError, match=r"uniforms are in \[0, 1\), found .* in row 2"):
        client.sample(3, uniforms=np.array([0.0, 0.5, bad], np.float32))


# A client that writes bytes to a socket


def test_these_messages_are_right(server: Server) -> None:
    """Otherwise the tests below would prove nothing."""
    for carrier in STREAMS:
        with Raw(server, carrier) as raw:
            hello = raw.ask(Message(HELLO))
            assert (hello.code, hello.text) == (OK, f"replay 100 {SCHEMA}\n")
            reply = raw.ask(insert_message(3.0, 4.0, request=7))
            assert (reply.code, reply.request, len(reply.body)) == (OK, 7, 16)
            uniforms = struct.pack("<ff", 0.5, 0.5)
            reply = raw.ask(Message(SAMPLE, uniforms, 2, flags=HAS_NUMBERS))
            assert reply.code == OK and len(reply.body) == 4 * 64
            assert b"size 2" in raw.ask(Message(INFO)).body
            reply = raw.ask(Message(BYE))
            assert reply.code == OK and raw.is_closed()
        connect(server.address).clear()
    with Raw(server, "unix") as raw, RawRegion(raw) as region:
        assert region.answer.code == OK
        assert region.ask(2, insert_message(5.0)).code == OK
        assert region.ask(0, Message(SAMPLE, rows=1)).body[128:132] == struct.pack("<f", 5.0)


MESSAGES: list[tuple[Message, int, str]] = [
    (Message(HELLO, version=2), BAD, "this server speaks version 1, found 2"),
    (Message(HELLO, version=0), BAD, "this server speaks version 1"),
    (Message(0), BAD, "there is no operation 0 here"),
    (Message(12), BAD, "there is no operation 12"),
    (Message(65535), BAD, "there is no operation 65535"),
    (Message(INFO, table=1), BAD, "there is no table 1"),
    (Message(INFO, table=65535), BAD, "there is no table 65535"),
    (Message(INFO, schema=1), BAD, f"`replay` has the columns {SCHEMA}"),
    (Message(SAVE), BAD, "no folder for snapshots"),
    (insert_message(1.0, flags=HAS_NUMBERS), BAD, "1 rows has 24 bytes, found 20"),
    (Message(INSERT, b"x" * 19, 1), BAD, "has 20 bytes, found 19"),
    (Message(INSERT, b"", 0), BAD, "there are no rows to insert"),
    (Message(INSERT, b"", 2**32 - 1), BAD, "is too large"),
    (Message(INSERT, b"", 1000), BAD, "has 20000 bytes, found 0"),
    (Message(SAMPLE, rows=0), BAD, "there are no rows to sample"),
    (Message(SAMPLE, rows=2**32 - 1), BAD, "is too large: a message has at most 1048576"),
    (Message(SAMPLE, rows=1), TIMEOUT, "there are 0 rows"),
    (Message(SAMPLE, b"x" * 5, rows=1), BAD, "has 0 bytes, found 5"),
    (Message(SAMPLE, b"x" * 3, rows=1, flags=HAS_NUMBERS), BAD, "has 4 bytes, found 3"),
    (Message(SAMPLE, rows=2**32 - 1, flags=HAS_NUMBERS), BAD, "bytes, found 0"),
    (Message(UPDATE, b"x" * 11, 1), BAD, "has 12 bytes, found 11"),
    (Message(UPDATE, b"", 2**32 - 1), BAD, "bytes, found 0"),
    (Message(FRAMES, b"", 2**32 - 1), BAD, "this table has no columns of frames"),
    (Message(FRAMES, b"x" * 16, 1), BAD, "has 0 bytes, found 16"),
]


@each_carrier
@pytest.mark.parametrize(("message", "code", "words"), MESSAGES, ids=lambda x: str(x)[:40])
def test_messages_that_are_refused(
    server: Server, carrier: str, message: Message, code: int, words: str
) -> None:
    """The connection stays open, and its other requests are answered."""
    if carrier == "udp":
        with RawPackets(server) as packets:
            reply = packets.ask(message)
            after = packets.ask(insert_message(1.0, request=2))
        assert (reply.code, reply.request, after.code, after.request) == (code, 1, OK, 2)
        assert words in reply.text
        still_serves(server)
        return
    with Raw(server, carrier) as raw:
        if carrier == "shm":
            with RawRegion(raw) as region:
                reply = region.ask(1, message)
                assert region.ask(1, insert_message(1.0)).code == OK
        else:
            raw.send(message, insert_message(1.0, request=2))
            reply = raw.receive()
            after = raw.receive()
            assert (after.code, after.request) == (OK, 2)
        assert reply.code == code and words in reply.text
        assert reply.request == 1
        still_serves(server)


@pytest.mark.xdist_group("dpdk")
def test_messages_that_a_node_refuses(place: Place) -> None:
    """All messages go through one relay."""
    with connect(start_node(place)) as client, Raw(place.folder / "relay") as raw:
        for message, code, words in MESSAGES:
            client.clear()
            reply = raw.ask(message)
            assert (reply.code, reply.request) == (code, 1) and words in reply.text
            after = raw.ask(insert_message(1.0, request=2))
            assert (after.code, after.request) == (OK, 2), message
        is_served(client)


@pytest.mark.xdist_group("dpdk")
@pytest.mark.parametrize("num", [1, 15, 20], ids=lambda num: f"{num} wait")
def test_a_client_of_a_node_that_is_gone_draws_nothing(place: Place, num: int) -> None:
    """With the most requests under way, 16, even its goodbye does not fit."""
    with connect(start_node(place)) as watcher:
        with Raw(place.folder / "relay") as raw:
            waits: dict[str, Any] = {"rows": 1, "timeout_ms": FOREVER}
            raw.send(*(Message(SAMPLE, request=i, **waits) for i in range(num)))
            eventually(lambda: watcher.info()["waiting"] == min(num, 16))
        eventually(lambda: watcher.info()["waiting"] == 0)
        eventually(lambda: watcher.info()["clients"] == 1)
        watcher.insert(rows(1))
        assert watcher.info()["samples"] == 0
        is_served(watcher)


@each_stream
@pytest.mark.parametrize("length", [LIMIT + 1, 2**40, 2**60, 2**64 - 1])
def test_lengths_that_nobody_has(carrier: str, length: int) -> None:
    tables = {"replay": {"schema": SCHEMA, "capacity": 10}}
    with serving_elsewhere(tables, max_bytes=LIMIT) as server, Raw(server, carrier) as raw:
        raw.ask(Message(HELLO))
        before = server.resident()
        reply = raw.ask(Message(INSERT, rows=2**20, length=length))
        assert reply.code == BAD and f"a request of {length} bytes is too large" in reply.text
        raw.send(b"x" * 2**16)
        if length == LIMIT + 1:  # bytes that are really sent
            raw.send(b"x" * (length - 2**16))
            assert raw.ask(insert_message(1.0)).code == OK
        assert server.resident() < before + 2**22
        still_serves(server)


@each_stream
def test_a_length_that_is_claimed_takes_no_memory(carrier: str) -> None:
    tables = {"replay": {"schema": SCHEMA, "capacity": 10}}
    with serving_elsewhere(tables) as server:
        before = server.resident()
        raws = [Raw(server, carrier) for _ in range(20)]
        for raw in raws:
            raw.send(Message(INSERT, rows=2**20, length=2**30), b"x" * 1000)
        still_serves(server)
        assert server.resident() < before + 2**24
        for raw in raws:
            raw.socket.close()
        eventually(lambda: connect(server.addresses[0]).info()["clients"] == 1)


@each_stream
@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".ljust(64), bytes(64), b"\xff" * 70_000],
    ids=["http", "zeros", "ones"],
)
def test_what_is_no_message(server: Server, carrier: str, data: bytes) -> None:
    with Raw(server, carrier) as raw:
        assert raw.ask(Message(HELLO)).code == OK
        raw.send(data)
        reply = raw.receive()
        assert (reply.code, reply.text) == (CLOSED, "these are no messages of a replay client")
        assert raw.is_closed()
        still_serves(server)


HELLO_BYTES = Message(HELLO).pack()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        bytes(48),
        b"\xff" * 9000,
        HELLO_BYTES,
        packet(HELLO_BYTES, check=0),
        packet(HELLO_BYTES)[:-1],
        packet(HELLO_BYTES) + b"x",
        packet(HELLO_BYTES, kind=REPLY),
        packet(HELLO_BYTES, number=0),
        packet(HELLO_BYTES, number=1, behind=1),
        packet(HELLO_BYTES, fragment=1),
        packet(HELLO_BYTES, fragments=0),
        packet(HELLO_BYTES, length=2**31),
        packet(b"", length=0),
        packet(bytes(64)),
        packet(HELLO_BYTES[:30]),
        packet(Message(HELLO, length=7).pack()),
    ],
)
def test_what_is_no_packet(server: Server, data: bytes) -> None:
    """It is dropped and counted. There is no answer, because its address may be forged."""
    watcher = connect(server.address)
    with RawPackets(server) as raw:
        raw.socket.send(data)
        eventually(lambda: watcher.info()["dropped"] == 1)
        assert raw.hears_nothing()
    still_serves(server)
    with RawPackets(server) as raw:  # otherwise the packets above would prove nothing
        assert raw.ask(Message(HELLO)).text == f"replay 100 {SCHEMA}\n"


def test_packets_of_a_message_that_is_too_large() -> None:
    """The first packet is refused, and takes no memory."""
    tables = {"replay": {"schema": SCHEMA, "capacity": 10}}
    with serving_elsewhere(tables, max_bytes=LIMIT) as server, RawPackets(server) as raw:
        raw.ask(Message(HELLO))
        before = server.resident()
        for number in range(100):
            head = Message(INSERT, rows=2**20, length=2**31).pack()
            payload = head + bytes(1024 - len(head))
            many: dict[str, Any] = {"fragments": 2**21, "stride": 1024, "length": 2**31}
            raw.socket.send(packet(payload, client=number + 1, **many))
            assert b"a message of 2147483648 bytes is too large" in raw.socket.recv(2**16)
        assert server.resident() < before + 2**22
        still_serves(server)


@each_stream
def test_whoever_goes_on_sending_nonsense_is_dropped(server: Server, carrier: str) -> None:
    with Raw(server, carrier) as raw:
        raw.send(b"x" * 100)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            raw.send_for_ever(b"x" * 2**20)
    still_serves(server)


@each_stream
def test_messages_that_end_in_the_middle(server: Server, carrier: str) -> None:
    whole = insert_message(1.0, 2.0).pack()
    for cut in (1, 63, 64, 65, len(whole) - 1):
        with Raw(server, carrier) as raw:
            raw.send(whole[:cut])
            raw.socket.shutdown(socket.SHUT_WR)
            assert raw.is_closed()
    still_serves(server)
    watcher = connect(server.address)
    assert watcher.info()["inserts"] == 3 * len(CARRIERS)
    eventually(lambda: watcher.info()["clients"] == 1)


@each_stream
def test_messages_that_come_byte_by_byte(server: Server, carrier: str) -> None:
    with Raw(server, carrier) as raw:
        for byte in insert_message(1.0, 2.0).pack() + Message(INFO, request=2).pack():
            raw.send(bytes([byte]))
        assert raw.receive().code == OK
        assert b"size 2" in raw.receive().body


@each_stream
def test_requests_of_one_connection_that_wait(server: Server, carrier: str) -> None:
    with Raw(server, carrier) as raw:
        raw.send(*(Message(SAMPLE, rows=1, request=i, timeout_ms=FOREVER) for i in range(70)))
        for _ in range(6):
            reply = raw.receive()
            assert reply.code == BAD and "64 requests of this connection wait" in reply.text
        raw.send(insert_message(1.0, request=100))
        replies = [raw.receive() for _ in range(65)]
        assert [reply.code for reply in replies] == [OK] * 65
        assert {reply.request for reply in replies} == {*range(64), 100}
    still_serves(server)


def test_memory_that_waits_is_bounded() -> None:
    """Requests of a connection that wait may keep the rows of one message at most."""
    table = Table("x:uint8:65536", 10, samples_per_insert=1.0, tolerance=10.0)
    with serving(table, max_bytes=LIMIT) as server, Raw(server, "unix") as raw:
        connect(server.address).insert({"x": np.zeros((10, 65536), np.uint8)})
        wanted: dict[str, Any] = {"schema": schema_hash("x:uint8:65536"), "timeout_ms": FOREVER}
        raw.send(*(Message(INSERT, bytes(65536 * 4), 4, request=i, **wanted) for i in range(5)))
        reply = raw.receive()
        assert (reply.code, reply.request) == (BAD, 4)
        assert "4 requests of this connection wait already" in reply.text
