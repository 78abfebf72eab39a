"""Connections of this process to others of its run: accepts and opens them, and greets.

    expected = listener().expect("control", "n1")           # in one process
    print(expected.address)
    messages = expected.accept(seconds=60.0).signed()

    name = ConnectionId("control", "n1")                     # in the other
    messages = listener().connect(address, name, seconds=60.0).signed()

One thread (`greeter.py`) does this for all connections, and never waits for one of them, so
strangers cannot keep it from serving others. A process that only connects does not listen at all.
"""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from hocket.system.network import Network, address_of, bind, get_network, read_address
from hocket.system.network.greeter import Fail, Greeter, Greeting
from hocket.system.network.greeting import Claim, ConnectionId, Greeted, accept, greet
from hocket.system.network.signed import SignedSocket

GREETING_SECONDS = 5.0
"""Seconds within which a process that has connected must prove that it knows the secret."""
MAX_STRANGERS = 256
"""The most accepted connections without a proof. One more takes the place of the oldest."""
_BACKLOG, _ACCEPTS, _PAUSE_SECONDS = 1024, 64, 0.05


class Connection(NamedTuple):
    """A connection whose two sides have greeted each other."""

    socket: socket.socket
    greeted: Greeted
    connected: bool
    """True on the side that opened the connection."""

    def signed(self) -> SignedSocket:
        """Return a socket for messages that are authenticated."""
        self.socket.setblocking(True)
        return SignedSocket(self.socket, self.greeted.key, connected=self.connected)


Use: TypeAlias = Callable[[Connection], object]


class Expected:
    """One connection for which this process listens, though it may not be ready for it yet."""

    def __init__(self, listener: Listener, digest: bytes, address: str) -> None:
        self._listener, self.digest, self.address = listener, digest, address
        self.ready: tuple[int, Use, Fail] | None = None

    def open(self, epoch: int, use: Use, fail: Fail) -> None:
        """Call `use` with the connection of this epoch as soon as it is there, in another thread.

        Neither `use` nor `fail` may wait or raise.
        """
        self.ready = epoch, use, fail
        self._listener.wake()

    def accept(self, seconds: float, epoch: int = 0) -> Connection:
        """Wait for the connection of this epoch. Raise `TimeoutError` if it does not come."""
        future: Future[Connection] = Future()
        self.open(epoch, future.set_result, future.set_exception)
        try:
            return future.result(seconds)
        except TimeoutError:
            self.close()
            raise TimeoutError(
                f"no process of this run has connected to {self.address} within {seconds:g} s"
            ) from None

    def close(self) -> None:
        """Refuse the connection from now on."""
        self._listener.forget(self)


class Listener:
    """The connections of one process that are being made."""

    def __init__(self, network: Network) -> None:
        self._network, self._listening = network, None
        self._expected: dict[bytes, Expected] = {}
        self._greeter, self._starting = Greeter(), threading.Lock()
        self.wake = self._greeter.wake

    def expect(self, purpose: str, name: str) -> Expected:
        """Listen for one connection. Its address can be sent to the process that is to connect."""
        with self._starting:
            if self._listening is None:
                self._listening = self._listen()
        digest = ConnectionId(purpose, name).digest
        expected = Expected(self, digest, address_of(self._listening))
        self._expected[digest] = expected
        return expected

    def begin(self, address: str, name: ConnectionId, seconds: float, use: Use, fail: Fail) -> None:
        """Connect without waiting: `use` is called with the connection, or `fail`, later.

        They are called in another thread, and may neither wait nor raise.
        """
        family, where = read_address(address)
        connecting = socket.socket(family, socket.SOCK_STREAM)
        steps, deadline = greet(self._network.secret, name), time.monotonic() + seconds
        done = partial(_made, use, True)
        greeting = Greeting(connecting, steps, deadline, done, fail, connects=True, is_open=False)
        self._greeter.run(lambda: self._connect(greeting, where))

    def connect(self, address: str, name: ConnectionId, seconds: float) -> Connection:
        """Connect, and wait for the end of the greeting. Raise `ConnectionError` if that fails."""
        future: Future[Connection] = Future()
        self.begin(address, name, seconds, future.set_result, future.set_exception)
        try:
            return future.result()
        except OSError as error:
            raise ConnectionError(
                f"cannot connect to {address} ({name.purpose} `{name.name}`): {error}"
            ) from error

    def forget(self, expected: Expected) -> None:
        """Refuse a connection from now on, also one that is held."""
        if self._expected.get(expected.digest) is expected:
            del self._expected[expected.digest]
            self.wake()

    def close(self) -> None:
        """Stop listening, and end all greetings. Connections that were made stay."""
        self._greeter.close()
        if self._listening:
            self._listening.close()

    def _listen(self) -> socket.socket:
        listening = bind(self._network)
        listening.listen(_BACKLOG)
        listening.setblocking(False)
        accept_some = partial(self._accept, listening)
        self._greeter.run(lambda: self._greeter.watch(listening, accept_some))
        return listening

    # The rest runs in the greeter's thread.

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTS):
            try:
                accepted, _ = listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                no_file = error.errno in (errno.EMFILE, errno.ENFILE)
                if no_file and not self._greeter.refuse_oldest():
                    time.sleep(_PAUSE_SECONDS)  # until this process has a file for a connection
                return
            self._greet(accepted)

    def _greet(self, accepted: socket.socket) -> None:
        if sum(x.is_stranger for x in self._greeter.greetings) >= MAX_STRANGERS:
            self._greeter.refuse_oldest()
        steps = accept(self._network.secret, lambda claim: self._decide(greeting, claim))
        greeting = Greeting(accepted, steps, time.monotonic() + GREETING_SECONDS)
        self._greeter.add(greeting)

    def _decide(self, greeting: Greeting, claim: Claim) -> bool | None:
        """Say if a connector that has proved its claim is welcome; None if that is not known."""
        if (expected := self._expected.get(claim.digest)) is None:
            return False
        if expected.ready is None:
            return None
        epoch, use, fail = expected.ready
        if claim.epoch != epoch:
            return False
        greeting.done, greeting.fail = partial(_made, use, False), fail
        del self._expected[claim.digest]
        return True

    def _connect(self, greeting: Greeting, where: Any) -> None:
        self._greeter.add(greeting)
        try:
            greeting.socket.connect(where)
        except BlockingIOError:
            return
        except OSError as error:
            self._greeter.end(greeting, error)


def _made(use: Use, connected: bool, made: socket.socket, greeted: Greeted) -> None:
    use(Connection(made, greeted, connected))


_listeners: list[Listener] = []
_making = threading.Lock()


def listener() -> Listener:
    """Return the listener of this process, which uses its network."""
    with _making:
        if not _listeners:
            _listeners.append(Listener(get_network()))
        return _listeners[0]
