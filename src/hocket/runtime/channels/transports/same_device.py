"""The transport between threads on one device: it hands over arrays without copying them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import jax

from hocket.cluster.devices import find_devices
from hocket.runtime.channels import Ends, Here
from hocket.runtime.channels.link_end import READER, WRITER, LinkEnd
from hocket.runtime.channels.links import Link
from hocket.system.events import Closed, Event


class Queue:
    """The messages between two threads, which both hold the same arrays.

    No program donates an array that was sent, so neither thread can overwrite an array that the
    other still reads.
    """

    def __init__(self, slots: int, delay: float = 0.0, homes: Sequence[Any] = ()) -> None:
        self.slots, self.delay, self.homes = slots, delay, list(homes)
        self.messages: deque[tuple[float, Sequence[Any]]] = deque()
        self.changed = threading.Condition()
        self.event: Event | None = None
        self.waited_ns = [0, 0]
        self._closed = False

    def has_message(self) -> bool:
        return bool(self.messages) and (
            not self.delay or self.messages[0][0] <= time.perf_counter()
        )

    def wait(self, side: int, ready: Callable[[], bool]) -> None:
        """Wait until `ready()` returns True. The caller must hold the lock."""
        start = time.perf_counter_ns()
        while not self._closed and not ready():
            # No signal comes when a message's delay is over, so the reader waits with a timeout.
            due = self.messages[0][0] if side == READER and self.messages else None
            self.changed.wait(due and max(due - time.perf_counter(), 0.0))
        if self._closed:
            raise Closed
        self.waited_ns[side] += time.perf_counter_ns() - start

    def close(self) -> None:
        with self.changed:
            self._closed = True
            self.changed.notify_all()


class QueueOutbox(LinkEnd[Queue]):
    """The sending end of a queue.

    If the queue has `homes`, the shardings that the receiver wants, arrays are copied to these.
    """

    side = WRITER

    def send(self, arrays: Sequence[Any]) -> None:
        queue = self._carrier
        message = jax.device_put(arrays, queue.homes) if queue.homes else arrays
        with queue.changed:
            queue.wait(WRITER, lambda: len(queue.messages) < queue.slots)
            queue.messages.append((time.perf_counter() + queue.delay, message))
            queue.changed.notify_all()
        self.sent += 1
        if queue.event:
            queue.event.signal()


class QueueInbox(LinkEnd[Queue]):
    """The receiving end of a queue."""

    def ready(self) -> bool:
        return self._carrier.has_message()

    def wake(self, event: Event) -> None:
        self._carrier.event = event

    def receive(self) -> Sequence[Any]:
        queue = self._carrier
        with queue.changed:
            queue.wait(READER, queue.has_message)
            _, message = queue.messages.popleft()
            queue.changed.notify_all()
        self.taken += 1
        return message


class SameDevice:
    """The transport that hands over the sender's own arrays."""

    preference = 0.0
    on_devices = True
    device_ordered = False

    def why_not(self, link: Link, ends: Ends) -> str:
        if not ends.one_process:
            return "it is for threads of one process, and these are two processes."
        if find_devices(ends.source) != find_devices(ends.target):
            return "it is for two instances on the same devices, and these are on different ones."
        return ""

    def room(self, link: Link) -> int:
        return 0

    def listen(self, link: Link, here: Here) -> Queue:
        return Queue(link.slots, link.delay)

    def connect(
        self, link: Link, address: Queue, here: Here, epoch: int
    ) -> QueueOutbox | QueueInbox:
        return QueueOutbox(address) if here.sends else QueueInbox(address)


TRANSPORT = SameDevice()
