"""A program that measures the network between the nodes of a cluster.

    python -m hocket.system.nodes.probe

`hocket devices --cluster ... --check` starts one on every node, connects to it like a run to a
steward, and has every two of them measure the way between them. It ends when the connection to the
command ends, or when it has had nothing to do for a while.
"""

from __future__ import annotations

import contextlib
import pickle
import signal
import socket
import struct
import sys
import threading
import time
from typing import Any, NamedTuple

from hocket.system.as_child import expect_run, leave_signals
from hocket.system.network import Network, address_of, bind, read_address
from hocket.system.network.greeting import ConnectionId
from hocket.system.network.listener import Expected, listener

PURPOSE, PEER = "probe", "probe-peer"
"""The purposes of a connection from the command, and of one from another probe."""
LIFE_SECONDS = 120
"""Seconds without a command after which a probe ends."""
CONNECT_SECONDS = 5.0
SILENT_SECONDS = 10.0
"""Seconds without a byte after which a message that should arrive is given up."""
ROUND_TRIPS = 30
_FIRST_NBYTES, _LAST_NBYTES, _LONG_ENOUGH_SECONDS = 1 << 20, 1 << 30, 0.1
_LENGTH = struct.Struct("<Q")
_SMALL_NBYTES = 64 - _LENGTH.size
_CHUNK = bytes(1 << 20)
_IP_MTU, _IPV6_MTU = 14, 24


class Setup(NamedTuple):
    """The settings of a probe, which come through its input, where nobody else can read them."""

    node: str
    network: Network


class Way(NamedTuple):
    """The measurements of the way from one node to another."""

    round_trip: float = 0.0
    """Seconds of the round trip of a small message. One in ten takes less."""
    rate: float = 0.0
    """Bytes per second of one connection. 0 if large messages did not arrive."""
    mtu: int = 0
    """The most bytes of a packet, as this machine knows it."""
    problem: str = ""
    """The system's error if the connection failed, or large messages did not arrive; else ""."""


class Probe:
    """The commands that a probe obeys. Their results are sent back."""

    def expect(self, name: str) -> str:
        """Answer one probe, which is to connect to the address that is returned."""
        expected = listener().expect(PEER, name)
        threading.Thread(target=_answer, args=(expected,), daemon=True).start()
        return expected.address

    def measure(self, address: str, name: str) -> tuple[Any, ...]:
        """Connect to another probe, and return the fields of the `Way` to it."""
        try:
            made = listener().connect(address, ConnectionId(PEER, name), CONNECT_SECONDS)
        except OSError as error:
            return tuple(Way(problem=str(error.__cause__ or error)))
        with made.socket as connection:
            return tuple(_measured(connection))  # plain, as this program is `__main__`

    def open_port(self, host: str, port: int) -> str:
        """Listen at one more port until this process ends. Return its address, or "" if taken."""
        try:
            self._listening = bind(Network(host, ports=(port, port)))
        except OSError:
            return ""
        self._listening.listen()
        return address_of(self._listening)

    def reach(self, address: str) -> str:
        """Return why nothing can connect from here to an address; "" if it is possible."""
        family, where = read_address(address)
        with socket.socket(family, socket.SOCK_STREAM) as connecting:
            connecting.settimeout(CONNECT_SECONDS)
            try:
                connecting.connect(where)
            except OSError as error:
                return str(error)
        return ""

    def clock(self) -> float:
        """Return the time of this machine's clock."""
        return time.time()


def _answer(expected: Expected) -> None:
    """Take messages of any length, and answer each with as many bytes as its length has."""
    with contextlib.suppress(OSError), expected.accept(SILENT_SECONDS).socket as connection:
        _prepare(connection)
        while True:
            header = _received(connection)
            (left,) = _LENGTH.unpack(header)
            while left:
                left -= len(_some(connection, left))
            connection.sendall(header)


def _measured(connection: socket.socket) -> Way:
    _prepare(connection)
    way = Way(mtu=_mtu(connection))
    try:
        times = sorted(_exchange(connection, _SMALL_NBYTES) for _ in range(ROUND_TRIPS))
        way = way._replace(round_trip=times[ROUND_TRIPS // 10])
        nbytes, seconds = _FIRST_NBYTES, _exchange(connection, _FIRST_NBYTES)
        while seconds < _LONG_ENOUGH_SECONDS and nbytes < _LAST_NBYTES:
            nbytes *= 2
            seconds = _exchange(connection, nbytes)
    except OSError as error:
        return way._replace(problem=str(error))
    return way._replace(rate=nbytes / seconds)


def _exchange(connection: socket.socket, nbytes: int) -> float:
    """Send a message, and return the seconds until its answer is here."""
    start = time.perf_counter()
    connection.sendall(_LENGTH.pack(nbytes) + _CHUNK[:_SMALL_NBYTES])  # at once: one packet
    for sent in range(_SMALL_NBYTES, nbytes, len(_CHUNK)):
        connection.sendall(memoryview(_CHUNK)[: nbytes - sent])
    _received(connection)
    return time.perf_counter() - start


def _received(connection: socket.socket) -> bytes:
    """Return the length of the next message."""
    length = b""
    while len(length) < _LENGTH.size:
        length += _some(connection, _LENGTH.size - len(length))
    return length


def _some(connection: socket.socket, most: int) -> bytes:
    if not (data := connection.recv(min(most, len(_CHUNK)))):
        raise ConnectionError("the other side has hung up")
    return data


def _prepare(connection: socket.socket) -> None:
    connection.settimeout(SILENT_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _mtu(connection: socket.socket) -> int:
    """Return the most bytes of a packet on this connection; 0 if the system does not tell."""
    of_six = connection.family == socket.AF_INET6
    option = (socket.IPPROTO_IPV6, _IPV6_MTU) if of_six else (socket.IPPROTO_IP, _IP_MTU)
    with contextlib.suppress(OSError):
        return connection.getsockopt(*option)
    return 0


def main() -> None:
    """Obey one command line until it hangs up."""
    leave_signals()
    signal.alarm(LIFE_SECONDS)  # ends this process, whatever it is waiting for
    setup: Setup = pickle.loads(sys.stdin.buffer.read())
    expected = expect_run(setup.network, PURPOSE, setup.node)
    control, probe = expected.accept(LIFE_SECONDS).signed(), Probe()
    with contextlib.suppress(EOFError, OSError):
        while True:
            command, *arguments = control.read()
            signal.alarm(LIFE_SECONDS)
            control.write(getattr(probe, command)(*arguments))


if __name__ == "__main__":
    main()
