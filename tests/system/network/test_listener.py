"""Connections are accepted and opened by one thread, which no stranger can keep from its work."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from hocket.system.network import Network, read_address
from hocket.system.network import listener as listening
from hocket.system.network.greeting import MAGIC, VERSION, ConnectionId, Refused, accept
from hocket.system.network.listener import Connection, Listener
from hocket.system.network.refusals import REFUSALS
from tests.system.network.test_network import has_ipv6

NETWORK = Network()
NAME = ConnectionId("control", "n1")


OPEN: list[Listener | Connection] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """Close whatever a test has opened."""
    yield
    while OPEN:
        thing = OPEN.pop()
        (thing.socket if isinstance(thing, Connection) else thing).close()


def never(result: object) -> None:
    pytest.fail(f"{result} was not to come")


def made(network: Network = NETWORK) -> Listener:
    OPEN.append(new := Listener(network))
    return new


@contextlib.contextmanager
def counted(reason: str, count: int = 1) -> Iterator[None]:
    """Expect so many more refusals for a reason, soon."""
    before, deadline = REFUSALS.by_reason.get(reason, 0), time.monotonic() + 30
    yield
    while (now := REFUSALS.by_reason.get(reason, 0)) < before + count:
        assert time.monotonic() < deadline, (reason, now - before, count)
        time.sleep(0.005)
    assert now == before + count


def meet(acceptor: Listener, connector: Listener, name: ConnectionId = NAME) -> list[Connection]:
    expected = acceptor.expect(name.purpose, name.name)
    accepted: list[Connection] = []
    thread = threading.Thread(target=lambda: accepted.append(expected.accept(30, name.epoch)))
    thread.start()
    connected = connector.connect(expected.address, name, 30)
    thread.join()
    OPEN.extend(both := [connected, *accepted])
    return both


def raw(address: str) -> socket.socket:
    family, where = read_address(address)
    connecting = socket.socket(family)
    connecting.connect(where)
    return connecting


def test_two_processes_meet_and_talk() -> None:
    mine, theirs = (x.signed() for x in meet(made(NETWORK), made(NETWORK)))
    mine.write({"hello": 1})
    assert theirs.read() == {"hello": 1}
    theirs.write_bytes(b"bytes")
    assert mine.read_bytes() == b"bytes"
    mine.close()
    with pytest.raises(EOFError):
        theirs.read()


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_over_ipv6() -> None:
    network = Network("::1")
    mine, theirs = (x.signed() for x in meet(made(network), made(network)))
    mine.write("six")
    assert theirs.read() == "six"


def test_a_process_that_only_connects_does_not_listen() -> None:
    acceptor, connector = made(NETWORK), made(NETWORK)
    meet(acceptor, connector)
    assert connector._listening is None
    one, other = (acceptor.expect("control", name) for name in "ab")
    assert one.address == other.address


def test_who_comes_early_is_kept_waiting() -> None:
    acceptor, connector, arrived = made(NETWORK), made(NETWORK), []
    expected = acceptor.expect(*NAME[:2])
    connector.begin(expected.address, NAME, 30, arrived.append, arrived.append)
    time.sleep(0.1)
    assert not arrived
    accepted = expected.accept(30)
    while not arrived:
        time.sleep(0.001)
    assert arrived[0].greeted.key == accepted.greeted.key
    OPEN.extend([accepted, *arrived])


def test_another_secret_name_or_epoch_is_refused_and_counted() -> None:
    acceptor, stranger = made(NETWORK), made(Network())
    expected = acceptor.expect(*NAME[:2])
    with counted("proof"), pytest.raises(ConnectionError, match="has another secret") as caught:
        stranger.connect(expected.address, NAME, 30)
    assert isinstance(caught.value.__cause__, Refused) and "tcp:127.0.0.1:" in str(caught.value)
    expected.open(3, never, never)
    for name in (NAME, ConnectionId("control", "n2", 3), ConnectionId("link", "n1", 3)):
        with counted("unexpected"), pytest.raises(ConnectionError, match="does not expect"):
            made(NETWORK).connect(expected.address, name, 30)
    expected.close()
    with counted("unexpected"), pytest.raises(ConnectionError):
        made(NETWORK).connect(expected.address, NAME._replace(epoch=3), 30)


def test_a_connection_is_made_once() -> None:
    acceptor, connector = made(NETWORK), made(NETWORK)
    meet(acceptor, connector)
    address = acceptor.expect("control", "n3").address
    with counted("unexpected"), pytest.raises(ConnectionError):
        connector.connect(address, NAME, 30)


def test_nobody_comes_and_nobody_is_there() -> None:
    acceptor = made(NETWORK)
    expected = acceptor.expect(*NAME[:2])
    with pytest.raises(TimeoutError, match=r"connected to tcp:127.0.0.1:\d+ within 0.05 s"):
        expected.accept(0.05)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"tcp:127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(ConnectionError, match=r"cannot connect to tcp:.*control `n1`.*refused"):
            acceptor.connect(address, NAME, 30)
        unused.listen(1)  # but does not greet
        with pytest.raises(ConnectionError, match="did not finish the greeting in time"):
            acceptor.connect(address, NAME, 0.1)


def test_the_silent_and_the_slow_are_refused_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "GREETING_SECONDS", 0.5)
    acceptor = made(NETWORK)
    address = acceptor.expect(*NAME[:2]).address
    with counted("silent", 2), raw(address) as silent, raw(address) as slow:
        opening, start = MAGIC + VERSION.to_bytes(4, "little") + bytes(72), time.monotonic()
        with contextlib.suppress(OSError):
            for k in range(len(opening)):
                slow.sendall(opening[k : k + 1])
                time.sleep(0.05)
        assert 0.3 < time.monotonic() - start < 4
        assert silent.recv(1) == b""


def test_a_good_process_is_served_among_a_thousand_bad_ones() -> None:
    acceptor, connector = made(NETWORK), made(NETWORK)
    address = acceptor.expect("control", "other").address
    stop = threading.Event()
    rubbish = [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + bytes(40), bytes(1000), b"x" * 12]

    def annoy() -> None:
        for k in range(1000):
            with raw(address) as bad, contextlib.suppress(OSError):
                bad.sendall(rubbish[k % 4])
                bad.settimeout(10)
                bad.recv(1)
        stop.set()

    with counted("stranger", 1000):
        thread = threading.Thread(target=annoy)
        thread.start()
        served = 0
        while not stop.is_set():
            meet(acceptor, connector, ConnectionId("control", f"good {served}"))
            served += 1
        thread.join()
    assert served >= 3


def test_too_many_at_once_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "MAX_STRANGERS", 8)
    acceptor = made(NETWORK)
    address = acceptor.expect("control", "other").address
    with contextlib.ExitStack() as stack, counted("crowded", 13):
        for _ in range(20):
            stack.enter_context(raw(address))
        meet(acceptor, made(NETWORK))


def test_nothing_is_read_beyond_the_greeting() -> None:
    """The first bytes of a link may come together with the last of the greeting."""
    acceptor = made(NETWORK)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = "tcp:127.0.0.1:" + str(server.getsockname()[1])
        arrived: list[Connection] = []
        acceptor.begin(address, NAME, 30, arrived.append, never)
        steps = accept(NETWORK.secret, lambda claim: True)
        accepted, _ = server.accept()
        needed, out = next(steps)[1], b""
        while len(out) != 32:  # until the proof
            out, needed = steps.send(accepted.recv(needed, socket.MSG_WAITALL))
            accepted.sendall(out if len(out) != 32 else out + b"first bytes")
        while not arrived:
            time.sleep(0.001)
        OPEN.extend(arrived)
        arrived[0].socket.setblocking(True)
        assert arrived[0].socket.recv(100) == b"first bytes"
        accepted.close()
