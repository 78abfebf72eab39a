"""Carries out greetings over sockets, in one thread that never waits for one of them."""

from __future__ import annotations

import contextlib
import os
import queue
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from hocket.system.network.greeting import Greeted, Refused, Steps
from hocket.system.network.refusals import REFUSALS

Done: TypeAlias = Callable[[socket.socket, Greeted], object]
Fail: TypeAlias = Callable[[Exception], object]


@dataclass(eq=False)
class Greeting:
    """A connection during its greeting."""

    socket: socket.socket
    steps: Steps
    deadline: float
    """The time by `time.monotonic()` at which the greeting has failed."""
    done: Done | None = None
    fail: Fail | None = None
    connects: bool = False
    """True on the side that opens the connection."""
    is_open: bool = True
    """False while the connection is being opened."""
    held: bool = False
    """True if the other side has proved its claim, and this process is not ready for it yet."""
    _out: bytes = b""
    _needed: int = 0
    _received: bytes = b""

    def begin(self) -> None:
        """Say the first words, once the connection is open: from then on the clock runs."""
        self.is_open = True
        self._out, self._needed = next(self.steps)

    def advance(self) -> Greeted | None:
        """Go on as far as possible without waiting. Return the result if the greeting is over."""
        try:
            if not self.is_open:
                if error := self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    raise OSError(error, os.strerror(error))
                self.begin()
            while not self._step():
                pass
        except BlockingIOError:
            pass
        except StopIteration as end:
            return end.value
        return None

    @property
    def is_stranger(self) -> bool:
        """True if another process has connected, and not proved anything yet."""
        return not (self.held or self.connects)

    @property
    def events(self) -> int:
        """The events of the socket for which this greeting waits."""
        writes = self._out or not self.is_open
        return selectors.EVENT_WRITE if writes else selectors.EVENT_READ

    def _step(self) -> bool:
        """Send, receive, or go on with the greeting. Return True if the greeting is held."""
        if self._out:
            self._out = self._out[self.socket.send(self._out) :]
        elif len(self._received) < self._needed:
            self._receive()
        else:
            data, self._received = self._received, b""
            self._out, self._needed = self.steps.send(data)
            self.held = not self._out and not self._needed
        return self.held

    def _receive(self) -> None:
        # Never more than this greeting needs: what follows belongs to whoever uses the connection.
        if not (data := self.socket.recv(self._needed - len(self._received))):
            raise Refused(
                "ended",
                "the other side ended the greeting: it has another secret, or does not expect "
                "this connection.",
            )
        self._received += data


class Greeter:
    """The greetings of one process, and the thread that carries them out.

    Any thread may call `run`, `wake` and `close`. The other methods are for the greeter's thread,
    which is to say for the functions given to `run` and `watch`.
    """

    def __init__(self) -> None:
        self.greetings: list[Greeting] = []
        """In the order of their beginning."""
        self._orders: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._selector = selectors.DefaultSelector()
        self._bell, self._rung = socket.socketpair()
        for end in (self._bell, self._rung):
            end.setblocking(False)
        self.watch(self._rung, lambda: self._rung.recv(4096))
        self._starting, self._ending = threading.Lock(), False
        self._thread: threading.Thread | None = None

    def run(self, order: Callable[[], object]) -> None:
        """Have the thread call a function, which may neither wait nor raise."""
        self._orders.put(order)
        self.wake()

    def wake(self) -> None:
        """Have the thread look for what it is to do, and go on with greetings that are held."""
        with self._starting:
            if not self._thread:
                self._thread = threading.Thread(target=self._serve, name="greeter", daemon=True)
                self._thread.start()
        with contextlib.suppress(BlockingIOError):  # it has been woken already
            self._bell.send(b".")

    def close(self) -> None:
        """End the thread, and all greetings. Connections that were made stay."""
        self._ending = True
        self.wake()
        assert self._thread
        self._thread.join()
        for greeting in list(self.greetings):
            self.end(greeting, OSError("this process ends."))
        for end in (self._bell, self._rung, self._selector):
            end.close()

    def watch(
        self, file: socket.socket, act: Callable[[], Any], events: int = selectors.EVENT_READ
    ) -> None:
        """Call `act` whenever one of the events of a socket occurs."""
        self._selector.register(file, events, act)

    def add(self, greeting: Greeting) -> None:
        """Begin a greeting, now or when its connection is open."""
        greeting.socket.setblocking(False)
        if greeting.is_open:
            greeting.begin()
        self.greetings.append(greeting)
        self.watch(greeting.socket, lambda: self._advance(greeting), greeting.events)

    def end(self, greeting: Greeting, error: OSError) -> None:
        """End a greeting that has failed, and count it unless only the network has failed."""
        _, fail = self._remove(greeting)
        greeting.socket.close()
        if isinstance(error, Refused):
            REFUSALS.count(error.reason)
        elif not greeting.connects:
            REFUSALS.count("ended")
        if fail:
            fail(error)

    def refuse_oldest(self) -> bool:
        """End the oldest greeting of a stranger. Return False if there is none."""
        oldest = next((x for x in self.greetings if x.is_stranger), None)
        if oldest:
            self.end(oldest, Refused("crowded", "too many processes connect at once."))
        return oldest is not None

    def _serve(self) -> None:
        while not self._ending:
            deadlines = [x.deadline for x in self.greetings if not x.held]
            left = min(deadlines) - time.monotonic() if deadlines else None
            for key, _ in self._selector.select(None if left is None else max(0.0, left)):
                key.data()
            while not self._orders.empty():
                self._orders.get()()
            for greeting in [x for x in self.greetings if x.held]:
                self._advance(greeting)
            now = time.monotonic()
            for greeting in [x for x in self.greetings if not x.held and x.deadline <= now]:
                late = Refused("silent", "the other side did not finish the greeting in time.")
                self.end(greeting, late)

    def _advance(self, greeting: Greeting) -> None:
        if greeting not in self.greetings:
            return  # ended since it had an event
        try:
            greeted = greeting.advance()
        except OSError as error:
            self.end(greeting, error)
            return
        if greeted:
            done, _ = self._remove(greeting)
            assert done
            done(greeting.socket, greeted)
            return
        watched = greeting.socket in self._selector.get_map()
        if greeting.held and watched:  # it may send nothing now, and its end is noticed later
            self._selector.unregister(greeting.socket)
        elif watched:
            key = self._selector.get_key(greeting.socket)
            self._selector.modify(greeting.socket, greeting.events, key.data)
        elif not greeting.held:
            self.watch(greeting.socket, lambda: self._advance(greeting), greeting.events)

    def _remove(self, greeting: Greeting) -> tuple[Done | None, Fail | None]:
        """Forget a greeting. Return the functions that wait for its result."""
        self.greetings.remove(greeting)
        if greeting.socket in self._selector.get_map():
            self._selector.unregister(greeting.socket)
        # The thread may keep this object for a while, but it must not keep what the functions use.
        done, fail, greeting.done, greeting.fail = greeting.done, greeting.fail, None, None
        return done, fail
