"""The transport between machines: one TCP connection for each link.

The receiver listens with the network of its process (`hocket.system.network`), and the sender
connects. Both prove in a greeting that they belong to the run, and that they mean the same link and
epoch. After that the connection carries the bytes of messages and nothing else. They are neither
encrypted nor signed.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hocket.runtime.channels import Ends, Here
from hocket.runtime.channels.link_end import WRITER, LinkEnd
from hocket.runtime.channels.links import Link
from hocket.system.events import Event
from hocket.system.network.greeting import ConnectionId
from hocket.system.network.listener import Expected, listener
from hocket.system.network.stream import Stream

PURPOSE = "link"
CONNECT_SECONDS = 600.0
"""Seconds in which a sender must have its connection. The receiver takes part only when it connects
itself, which may be late if its process is still busy."""


class Address(NamedTuple):
    """Where a receiver listens, and the name by which it knows the link's connection."""

    address: str
    name: str


class StreamOutbox(LinkEnd[Stream]):
    """The sending end, which copies every message into a slot."""

    side = WRITER

    def send(self, arrays: Sequence[Any]) -> None:
        self._carrier.send(arrays)
        self.sent += 1


class StreamInbox(LinkEnd[Stream]):
    """The receiving end. Large messages keep the memory in which they arrived."""

    def ready(self) -> bool:
        return self._carrier.ready()

    def wake(self, event: Event) -> None:
        self._carrier.wake(event)

    def receive(self) -> list[np.ndarray]:
        arrays = self._carrier.receive()
        self.taken += 1
        return arrays


class Tcp:
    """The transport in which each link has a connection."""

    preference = 40.0
    on_devices = False
    device_ordered = False

    def __init__(self) -> None:
        self._expected: dict[str, Expected] = {}
        self._lock = threading.Lock()

    def why_not(self, link: Link, ends: Ends) -> str:
        if not link.transport and (ends.one_process or ends.share_memory):
            return "these two instances share memory, which is faster: a channel can name it."
        return ""

    def room(self, link: Link) -> int:
        return 0

    def listen(self, link: Link, here: Here) -> Address:
        # A new name each time, so that no connection of an earlier epoch can be taken for this one.
        name = f"{link.name} #{link.transfer.id} {secrets.token_hex(16)}"
        expected = listener().expect(PURPOSE, name)
        with self._lock:
            self._expected[name] = expected
        return Address(expected.address, name)

    def connect(
        self, link: Link, address: Address, here: Here, epoch: int
    ) -> StreamOutbox | StreamInbox:
        stream = Stream(link.specs, link.slots, sends=here.sends, delay=link.delay)
        if here.sends:
            name = ConnectionId(PURPOSE, address.name, epoch)
            connect = listener().begin
            connect(address.address, name, CONNECT_SECONDS, stream.attach, stream.fail)
            return StreamOutbox(stream)
        with self._lock:
            expected = self._expected.pop(address.name)
        expected.open(epoch, stream.attach, stream.fail)
        return StreamInbox(stream)


TRANSPORT = Tcp()
