"""Probes measure the way from one process to another, and tell what is wrong with it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from hocket.system.network.greeting import ConnectionId
from hocket.system.network.listener import listener
from hocket.system.nodes import probe
from hocket.system.nodes.probe import PEER, Probe, Way


@contextlib.contextmanager
def refusing() -> Iterator[str]:
    """The address of a port at which nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"tcp:127.0.0.1:{bound.getsockname()[1]}"


def test_a_way_is_measured() -> None:
    mine = Probe()
    way = Way(*mine.measure(mine.expect("a -> b"), "a -> b"))
    assert not way.problem
    assert 0 < way.round_trip < 1 and way.rate > 1e6 and way.mtu > 1000


def test_nobody_listens() -> None:
    with refusing() as address:
        way = Way(*Probe().measure(address, "a -> b"))
        assert "Connection refused" in way.problem and way.round_trip == way.rate == 0
        assert "Connection refused" in Probe().reach(address)


def test_large_messages_that_do_not_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where something drops large packets: the greeting and small messages arrive."""
    monkeypatch.setattr(probe, "SILENT_SECONDS", 0.2)
    made = listener().expect(PEER, "a -> c")
    name = ConnectionId(PEER, "a -> c")
    connected = []
    made.open(0, connected.append, connected.append)
    mine = listener().connect(made.address, name, 60.0).socket
    theirs = connected[0].socket
    theirs.setblocking(True)
    mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
    with mine, theirs:
        theirs.sendall(bytes(8 * probe.ROUND_TRIPS))  # answers to the small messages alone
        way = probe._measured(mine)
    assert way.round_trip > 0 and way.rate == 0 and "timed out" in way.problem


def test_one_more_port(monkeypatch: pytest.MonkeyPatch) -> None:
    with refusing() as free:
        port = int(free.rpartition(":")[2])
        assert Probe().open_port("127.0.0.1", port) == "", "another process has this port"
    mine = Probe()
    address = mine.open_port("127.0.0.1", port)
    assert address == free and Probe().reach(address) == ""
    mine._listening.close()
