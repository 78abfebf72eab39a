"""Between processes of one machine: through a ring of slots in shared memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from hocket.runtime.channels import Ends, Here
from hocket.runtime.channels.links import Link
from hocket.system.events import Event, SharedEvent
from hocket.system.ring import Ring, Spec
from hocket.system.shared_memory import Space

_STAMP = ((1,), np.dtype(np.float64))  # when a delayed message may be read
_LINE = 64  # bytes: what somebody else writes lies on a line of its own


class _Memory:
    """A link's part of shared memory: whether somebody watches, an event, and a ring."""

    def __init__(self, link: Link, space: Space) -> None:
        memory, offset = space.file.memory, space.offset
        self.watched = np.ndarray((1,), np.int64, memory, offset)
        self.arrived = SharedEvent(memory, offset + _LINE)
        self.ring = Ring(memory, offset + self._head(), link.slots, self._specs(link))
        self.delay = link.delay

    @staticmethod
    def nbytes(link: Link) -> int:
        return _Memory._head() + Ring.nbytes(link.slots, _Memory._specs(link))

    def empty(self) -> None:
        self.watched[0] = 0
        self.ring.initialise()

    def close(self) -> None:
        self.ring.close()
        self.arrived.signal()

    @staticmethod
    def _head() -> int:
        nbytes = _LINE + SharedEvent.nbytes()
        return nbytes + -nbytes % _LINE

    @staticmethod
    def _specs(link: Link) -> list[Spec]:
        return [*link.specs, *([_STAMP] if link.delay else [])]


class RingOutbox:
    """The end of a ring that sends: it copies every message into a slot."""

    def __init__(self, link: Link, space: Space) -> None:
        self._memory = _Memory(link, space)
        self._ring, self._watched = self._memory.ring, self._memory.watched
        self.sent = 0

    @property
    def waited_ns(self) -> int:
        return self._ring.waited_ns.writer

    def send(self, arrays: Sequence[Any]) -> None:
        if self._memory.delay:
            arrays = [*arrays, np.array([time.monotonic() + self._memory.delay])]
        self._ring.send(arrays)
        self.sent += 1
        if self._watched[0]:
            self._memory.arrived.signal()

    def settle(self) -> None:
        """What is sent has left the device."""

    def close(self) -> None:
        self._memory.close()


class RingInbox:
    """The end of a ring that receives: it copies every message out of its slot."""

    def __init__(self, link: Link, space: Space) -> None:
        self._memory, self._slots = _Memory(link, space), link.slots
        self._ring = self._memory.ring
        self._closed = False
        self.taken = 0

    @property
    def waited_ns(self) -> int:
        return self._ring.waited_ns.reader

    def ready(self) -> bool:
        if self._ring.messages == self.taken:
            return False
        stamp = self._ring.views(self.taken % self._slots)[-1]
        return not self._memory.delay or float(stamp[0]) <= time.monotonic()

    def wake(self, event: Event) -> None:
        self._memory.watched[0] = 1
        threading.Thread(target=self._watch, args=(event,), daemon=True).start()

    def receive(self) -> list[np.ndarray]:
        with self._ring.lease() as views:
            if self._memory.delay:
                time.sleep(max(0.0, float(views[-1][0]) - time.monotonic()))
                views = views[:-1]
            found = [np.array(view) for view in views]
        self.taken += 1
        return found

    def settle(self) -> None:
        """What is received is on the host."""

    def close(self) -> None:
        self._closed = True
        self._memory.close()

    def _watch(self, event: Event) -> None:
        """Pass on what the sender signals; its event is in the shared memory, and `event` here."""
        seen = 0
        while not self._closed:
            count = self._memory.arrived.count()
            if self._ring.messages > seen:
                seen = self._ring.messages
                event.signal()
            self._memory.arrived.wait(count)


class SharedMemory:
    """Copies a message into a slot where it is sent, and out of it where it is received."""

    preference = 30.0
    on_devices = False
    device_ordered = False

    def why_not(self, link: Link, ends: Ends) -> str:
        if not ends.share_memory:
            return "these are two instances that share no memory."
        return ""

    def room(self, link: Link) -> int:
        return _Memory.nbytes(link)

    def listen(self, link: Link, here: Here) -> None:
        assert here.space
        _Memory(link, here.space).empty()

    def connect(self, link: Link, address: None, here: Here, epoch: int) -> RingOutbox | RingInbox:
        assert here.space
        return RingOutbox(link, here.space) if here.sends else RingInbox(link, here.space)


TRANSPORT = SharedMemory()
