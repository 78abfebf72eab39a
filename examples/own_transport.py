"""Example of a transport: messages go through a named FIFO.

A FIFO holds 64 KiB, and opening it waits for the other end. So the receiver opens it in both
directions, which never waits, and drains it in a thread. That leaves room for `slots` messages even
if nobody receives.

    Channel(transport="examples/own_transport.py:FIFO")
"""

from __future__ import annotations

import os
import select
import tempfile
import threading
import time
import uuid
from collections import deque
from pathlib import Path

from hocket.runtime.channels import Ends, Here, Link
from hocket.system.events import Closed, Event

LOOK_SECONDS = 0.1
"""How often a waiting end checks if it has been closed."""
HELLO = b"."


class Sending:
    """The end that sends. When it closes the FIFO, the receiver reads the end of the file."""

    def __init__(self, link: Link, path: str) -> None:
        self._link, self._closed = link, False
        self._fd = os.open(path, os.O_WRONLY)  # the receiver has opened it already
        os.set_blocking(self._fd, False)
        os.write(self._fd, HELLO)
        self._lock = threading.Lock()
        self.sent = self.waited_ns = 0

    def send(self, arrays):
        message = bytearray(max(self._link.message_nbytes, 1))
        for view, x in zip(self._link.views(message), arrays, strict=True):
            view[...] = x
        left = memoryview(message)
        while left:
            with self._lock:
                if self._closed:
                    raise Closed
                left = left[self._write(left) :]
            if left:
                self._wait()
        self.sent += 1

    def settle(self):
        """Do nothing: no work was put off."""

    def close(self):
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._fd)

    def _write(self, data):
        try:
            return os.write(self._fd, data)
        except BlockingIOError:
            return 0
        except BrokenPipeError:
            raise Closed from None

    def _wait(self):
        start = time.perf_counter_ns()
        writable = select.poll()
        writable.register(self._fd, select.POLLOUT)
        writable.poll(1000 * LOOK_SECONDS)
        self.waited_ns += time.perf_counter_ns() - start


class Receiving:
    """The end that receives. Its thread reads messages while there is room for them."""

    def __init__(self, link: Link, path: str) -> None:
        self._link, self._path, self._closed = link, path, False
        self._fd = os.open(path, os.O_RDWR)
        self._messages: deque[bytearray] = deque()
        self._changed, self._event = threading.Condition(), None
        self.taken = self.waited_ns = 0

    def begin(self):
        threading.Thread(target=self._drain, daemon=True).start()
        return self

    def ready(self):
        return bool(self._messages)

    def wake(self, event: Event):
        self._event = event

    def receive(self):
        start = time.perf_counter_ns()
        with self._changed:
            self._changed.wait_for(lambda: self._messages or self._closed)
            if self._closed:
                raise Closed
            message = self._messages.popleft()
            self._changed.notify_all()
        self.waited_ns += time.perf_counter_ns() - start
        self.taken += 1
        return self._link.views(message)

    def settle(self):
        """Do nothing: no work was put off."""

    def close(self):
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _drain(self):
        try:
            self._read(len(HELLO))
            # The sender has opened the FIFO, so nobody else needs its name. From now on only the
            # sender may hold it open for writing: then its close is the end of the file here.
            alone = os.open(self._path, os.O_RDONLY)
            os.unlink(self._path)
            self._fd, both = alone, self._fd
            os.close(both)
            while True:
                message = self._read(max(self._link.message_nbytes, 1))
                with self._changed:
                    self._messages.append(message)
                    self._changed.notify_all()
                if self._event:
                    self._event.signal()
                with self._changed:
                    self._changed.wait_for(self._may_go_on)
        except Closed:
            Path(self._path).unlink(missing_ok=True)
            os.close(self._fd)
            self.close()

    def _may_go_on(self):
        return self._closed or len(self._messages) < self._link.slots

    def _read(self, count):
        data = bytearray(count)
        left = memoryview(data)
        readable = select.poll()
        readable.register(self._fd, select.POLLIN)
        while left:
            if self._closed:
                raise Closed
            if readable.poll(1000 * LOOK_SECONDS):
                count_read = os.readv(self._fd, [left])
                if not count_read:
                    raise Closed
                left = left[count_read:]
        return data


class Fifo:
    """Carries messages through FIFOs, between two processes of one machine."""

    preference = 100.0
    on_devices = False
    device_ordered = False

    def __init__(self) -> None:
        self._listening: dict[str, Receiving] = {}

    def why_not(self, link: Link, ends: Ends):
        return "a FIFO knows no delay." if link.delay else ""

    def room(self, link: Link):
        return 0

    def listen(self, link: Link, here: Here):
        path = str(Path(tempfile.gettempdir()) / f"hocket-{os.getpid()}-{uuid.uuid4().hex}")
        os.mkfifo(path, mode=0o600)
        self._listening[path] = Receiving(link, path)
        return path

    def connect(self, link: Link, address: str, here: Here, epoch: int):
        return Sending(link, address) if here.sends else self._listening.pop(address).begin()


FIFO = Fifo()
