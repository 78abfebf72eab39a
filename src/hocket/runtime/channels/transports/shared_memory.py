"""The transport between processes of one machine: a ring of slots in shared memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from hocket.runtime.channels import Ends, Here
from hocket.runtime.channels.link_end import WRITER, LinkEnd
from hocket.runtime.channels.links import Link
from hocket.system.events import Event, SharedEvent
from hocket.system.ring import Ring, Spec
from hocket.system.shared_memory import Space

_STAMP = ((1,), np.dtype(np.float64))  # the time at which a message's delay is over
_LINE = 64  # bytes of a cache line; fields with different writers must not share a line


class RingMemory:
    """A link's part of the shared memory: a ring of messages, a flag and an event.

    The flag says if a thread of the receiver watches the ring. The event wakes that thread.
    """

    def __init__(self, link: Link, space: Space) -> None:
        memory, offset = space.file.memory, space.offset
        self.watched = np.ndarray((1,), np.int64, memory, offset)
        self.arrived = SharedEvent(memory, offset + _LINE)
        self.ring = Ring(memory, offset + self._head(), link.slots, self._specs(link))
        self.slots, self.delay, self.closed = link.slots, link.delay, False

    @staticmethod
    def nbytes(link: Link) -> int:
        return RingMemory._head() + Ring.nbytes(link.slots, RingMemory._specs(link))

    @property
    def waited_ns(self) -> list[int]:
        return self.ring.waited_ns

    def empty(self) -> None:
        self.watched[0] = 0
        self.ring.initialise()

    def close(self) -> None:
        self.closed = True
        self.ring.close()
        self.arrived.signal()

    @staticmethod
    def _head() -> int:
        return _LINE + SharedEvent.nbytes()  # the event, too, has a cache line to itself

    @staticmethod
    def _specs(link: Link) -> list[Spec]:
        return [*link.specs, *([_STAMP] if link.delay else [])]


class RingOutbox(LinkEnd[RingMemory]):
    """The sending end of a ring, which copies every message into a slot."""

    side = WRITER

    def send(self, arrays: Sequence[Any]) -> None:
        memory = self._carrier
        if memory.delay:
            arrays = [*arrays, np.array([time.monotonic() + memory.delay])]
        memory.ring.send(arrays)
        self.sent += 1
        # The ring wakes a reader that waits in it. Only a watcher needs the event, whose signal
        # costs a system call, so it is not signalled without a watcher.
        if memory.watched[0]:
            memory.arrived.signal()


class RingInbox(LinkEnd[RingMemory]):
    """The receiving end of a ring, which copies every message out of its slot."""

    def ready(self) -> bool:
        memory = self._carrier
        if memory.ring.messages == self.taken:
            return False
        # The oldest message stays in its slot until this end releases it, so its stamp may be read.
        stamp = memory.ring.views[self.taken % memory.slots][-1]
        return not memory.delay or float(stamp[0]) <= time.monotonic()

    def wake(self, event: Event) -> None:
        self._carrier.watched[0] = 1
        threading.Thread(target=self._watch, args=(event,), daemon=True).start()

    def receive(self) -> list[np.ndarray]:
        with self._carrier.ring.lease() as views:
            if self._carrier.delay:
                time.sleep(max(0.0, float(views[-1][0]) - time.monotonic()))
                views = views[:-1]
            # Copies, because the sender may fill the slot again when the lease ends. JAX on a CPU
            # uses aligned memory without a copy, so without these copies its arrays would change.
            arrays = [np.array(view) for view in views]
        self.taken += 1
        return arrays

    def _watch(self, event: Event) -> None:
        """Signal `event`, which belongs to this process, whenever a message arrives in the ring."""
        memory, seen = self._carrier, 0
        while not memory.closed:
            # Take the event's count before looking at the ring. If a message comes after the look,
            # its signal changes the count, and the wait below ends at once.
            count = memory.arrived.count()
            if memory.ring.messages > seen:
                seen = memory.ring.messages
                event.signal()
            memory.arrived.wait(count)


class SharedMemory:
    """The transport in which the sender fills slots of a ring, and the receiver empties them."""

    preference = 30.0
    on_devices = False
    device_ordered = False

    def why_not(self, link: Link, ends: Ends) -> str:
        if not ends.share_memory:
            return "these two instances share no memory."
        return ""

    def room(self, link: Link) -> int:
        return RingMemory.nbytes(link)

    def listen(self, link: Link, here: Here) -> None:
        # The sender connects only later, so nobody else uses the ring while this empties it.
        assert here.space
        RingMemory(link, here.space).empty()

    def connect(self, link: Link, address: None, here: Here, epoch: int) -> RingOutbox | RingInbox:
        assert here.space
        memory = RingMemory(link, here.space)
        return RingOutbox(memory) if here.sends else RingInbox(memory)


TRANSPORT = SharedMemory()
