"""Connections of this process to others of its run: accepts and opens them, and greets.

    expected = listener().expect("control", "n1")           # in one process
    print(expected.address)
    messages = expected.accept(seconds=60.0).signed()

    name = ConnectionId("control", "n1")                     # in the other
    messages = listener().connect(address, name, seconds=60.0).signed()

One thread does this for all connections, and never waits for one of them, so strangers cannot keep
it from serving others. A process that only connects does not listen at all.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import selectors
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from hocket.system.network import Network, address_of, bind, get_network, read_address
from hocket.system.network.greeting import (
    Claim,
    ConnectionId,
    Greeted,
    Refused,
    Steps,
    accept,
    greet,
)
from hocket.system.network.refusals import REFUSALS
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
Fail: TypeAlias = Callable[[Exception], object]


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


@dataclass(eq=False)
class _Greeting:
    """A connection during its greeting."""

    socket: socket.socket
    steps: Steps
    deadline: float
    use: Use | None = None
    fail: Fail | None = None
    connects: bool = False
    """True on the side that opens the connection."""
    is_open: bool = True
    held: bool = False
    """True if the other side has proved its claim, and this process is not ready for it yet."""
    out: bytes = b""
    needed: int = 0
    received: bytes = b""

    def advance(self) -> Greeted | None:
        """Go on as far as possible without waiting. Return the result if the greeting is over."""
        try:
            if not self.is_open:
                if error := self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    raise OSError(error, os.strerror(error))
                self.is_open = True
            while True:
                if self.out:
                    self.out = self.out[self.socket.send(self.out) :]
                elif len(self.received) < self.needed:
                    self._receive()
                else:
                    data, self.received = self.received, b""
                    self.out, self.needed = self.steps.send(data)
                    self.held = not self.out and not self.needed
                    if self.held:
                        return None
        except BlockingIOError:
            return None
        except StopIteration as end:
            return end.value

    def begin(self) -> None:
        self.out, self.needed = next(self.steps)

    @property
    def events(self) -> int:
        writes = self.out or not self.is_open
        return selectors.EVENT_WRITE if writes else selectors.EVENT_READ

    def _receive(self) -> None:
        # Never more than this greeting needs: what follows belongs to whoever uses the connection.
        if not (data := self.socket.recv(self.needed - len(self.received))):
            raise Refused(
                "ended",
                "the other side ended the greeting: it has another secret, or does not expect "
                "this connection.",
            )
        self.received += data


class Listener:
    """The connections of one process that are being made, and the thread that makes them."""

    def __init__(self, network: Network) -> None:
        self._network, self._listening = network, None
        self._expected: dict[bytes, Expected] = {}
        self._greetings: list[_Greeting] = []
        """In the order of their beginning."""
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._selector = selectors.DefaultSelector()
        self._bell, self._rung = socket.socketpair()
        self._starting, self._ending = threading.Lock(), False
        self._thread: threading.Thread | None = None

    def expect(self, purpose: str, name: str) -> Expected:
        """Listen for one connection. Its address can be sent to the process that is to connect."""
        with self._starting:
            if self._listening is None:
                self._listening = self._listen()
        digest = ConnectionId(purpose, name).digest
        expected = Expected(self, digest, address_of(self._listening))
        self._expected[digest] = expected
        self.wake()
        return expected

    def begin(self, address: str, name: ConnectionId, seconds: float, use: Use, fail: Fail) -> None:
        """Connect without waiting: `use` is called with the connection, or `fail`, later.

        They are called in another thread, and may neither wait nor raise.
        """
        family, where = read_address(address)
        self._orders.put(lambda: self._connect(family, where, name, seconds, use, fail))
        self.wake()

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

    def wake(self) -> None:
        """Have the thread look for what it is to do."""
        self._start()
        with contextlib.suppress(BlockingIOError):  # it has been woken already
            self._bell.send(b".")

    def forget(self, expected: Expected) -> None:
        if self._expected.get(expected.digest) is expected:
            del self._expected[expected.digest]
            self.wake()

    def close(self) -> None:
        """Stop listening, and end all greetings. Connections that were made stay."""
        self._ending = True
        self.wake()
        if self._thread:
            self._thread.join()
        for greeting in list(self._greetings):
            self._end(greeting, OSError("this process ends."))
        for end in (self._listening, self._bell, self._rung, self._selector):
            if end:
                end.close()

    def _listen(self) -> socket.socket:
        listening = bind(self._network)
        listening.listen(_BACKLOG)
        listening.setblocking(False)
        self._orders.put(lambda: self._watch(listening, self._accept))
        return listening

    def _start(self) -> None:
        with self._starting:
            if self._thread:
                return
            for end in (self._bell, self._rung):
                end.setblocking(False)
            self._watch(self._rung, lambda: self._rung.recv(4096))
            self._thread = threading.Thread(target=self._serve, name="hocket-listener", daemon=True)
            self._thread.start()

    # The rest runs in the thread.

    def _watch(self, file: socket.socket, act: Callable[[], Any], events: int = 0) -> None:
        self._selector.register(file, events or selectors.EVENT_READ, act)

    def _serve(self) -> None:
        while not self._ending:
            deadlines = [x.deadline for x in self._greetings if not x.held]
            left = min(deadlines) - time.monotonic() if deadlines else None
            for key, _ in self._selector.select(None if left is None else max(0.0, left)):
                key.data()
            while not self._orders.empty():
                self._orders.get()()
            for greeting in [x for x in self._greetings if x.held]:
                self._advance(greeting)
            now = time.monotonic()
            for greeting in [x for x in self._greetings if not x.held and x.deadline <= now]:
                late = Refused("silent", "the other side did not finish the greeting in time.")
                self._end(greeting, late)

    def _accept(self) -> None:
        assert self._listening
        for _ in range(_ACCEPTS):
            try:
                accepted, _ = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE) and not self._refuse_oldest():
                    time.sleep(_PAUSE_SECONDS)  # this process has no file left for a connection
                return
            self._greet(accepted)

    def _greet(self, accepted: socket.socket) -> None:
        if sum(not (x.held or x.connects) for x in self._greetings) >= MAX_STRANGERS:
            self._refuse_oldest()
        steps = accept(self._network.secret, lambda claim: self._decide(greeting, claim))
        greeting = _Greeting(accepted, steps, time.monotonic() + GREETING_SECONDS)
        self._add(greeting)

    def _refuse_oldest(self) -> bool:
        strangers = (x for x in self._greetings if not (x.held or x.connects))
        if oldest := next(strangers, None):
            self._end(oldest, Refused("crowded", "too many processes connect at once."))
        return oldest is not None

    def _decide(self, greeting: _Greeting, claim: Claim) -> bool | None:
        if (expected := self._expected.get(claim.digest)) is None:
            return False
        if expected.ready is None:
            return None
        epoch, use, fail = expected.ready
        if claim.epoch != epoch:
            return False
        greeting.use, greeting.fail = use, fail
        del self._expected[claim.digest]
        return True

    def _connect(
        self, family: int, where: Any, name: ConnectionId, seconds: float, use: Use, fail: Fail
    ) -> None:
        connecting = socket.socket(family, socket.SOCK_STREAM)
        deadline = time.monotonic() + seconds
        steps = greet(self._network.secret, name)
        greeting = _Greeting(connecting, steps, deadline, use, fail, connects=True, is_open=False)
        self._add(greeting)
        try:
            connecting.connect(where)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(greeting, error)

    def _add(self, greeting: _Greeting) -> None:
        greeting.socket.setblocking(False)
        greeting.begin()
        self._greetings.append(greeting)
        self._watch(greeting.socket, lambda: self._advance(greeting), greeting.events)

    def _advance(self, greeting: _Greeting) -> None:
        if greeting not in self._greetings:
            return  # ended since it had an event
        try:
            greeted = greeting.advance()
        except OSError as error:
            self._end(greeting, error)
            return
        if greeted:
            use, _ = self._remove(greeting)
            assert use
            use(Connection(greeting.socket, greeted, greeting.connects))
            return
        watched = greeting.socket in self._selector.get_map()
        if greeting.held and watched:  # it may send nothing now, and its end is noticed later
            self._selector.unregister(greeting.socket)
        elif not greeting.held and not watched:
            self._watch(greeting.socket, lambda: self._advance(greeting), greeting.events)
        elif watched:
            key = self._selector.get_key(greeting.socket)
            self._selector.modify(greeting.socket, greeting.events, key.data)

    def _end(self, greeting: _Greeting, error: OSError) -> None:
        """End a greeting that has failed, and count it unless only the network has failed."""
        _, fail = self._remove(greeting)
        greeting.socket.close()
        if isinstance(error, Refused):
            REFUSALS.count(error.reason)
        elif not greeting.connects:
            REFUSALS.count("ended")
        if fail:
            fail(error)

    def _remove(self, greeting: _Greeting) -> tuple[Use | None, Fail | None]:
        """Forget a greeting. Return the functions that wait for its result."""
        self._greetings.remove(greeting)
        if greeting.socket in self._selector.get_map():
            self._selector.unregister(greeting.socket)
        # The thread may keep this object for a while, but it must not keep what the functions use.
        use, fail, greeting.use, greeting.fail = greeting.use, greeting.fail, None, None
        return use, fail


_listeners: list[Listener] = []
_making = threading.Lock()


def listener() -> Listener:
    """Return the listener of this process, which uses its network."""
    with _making:
        if not _listeners:
            _listeners.append(Listener(get_network()))
        return _listeners[0]
