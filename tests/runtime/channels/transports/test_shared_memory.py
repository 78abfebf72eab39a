"""The transport between processes: a ring of slots in memory that they share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import jax.numpy as jnp
import numpy as np

from hocket.runtime.channels import Ends
from hocket.runtime.channels.transports.shared_memory import TRANSPORT, RingMemory
from hocket.system.events import ThreadEvent
from hocket.system.shared_memory import MemoryFile, Space
from tests.runtime.channels.two_ends import connected, message, planned, upwards


def test_what_was_received_outlives_its_slot() -> None:
    """The ring fills its slots again, and JAX takes aligned memory without a copy."""
    sender, receiver = connected("shm")
    sender.send(message(1.0))
    (x,) = (jnp.asarray(x) for x in receiver.receive())
    for k in (2.0, 3.0):
        sender.send(message(k))
        receiver.receive()
    assert (np.asarray(x) == 1.0).all()


def test_it_asks_for_as_much_memory_as_its_messages_take() -> None:
    link = upwards(planned())
    room = TRANSPORT.room(link)
    assert TRANSPORT.room(replace(link, slots=link.slots + 1)) == room + link.message_nbytes
    delayed = replace(link, delay=0.1)
    assert TRANSPORT.room(delayed) == room + 64 * link.slots  # a time beside each message
    space = Space(MemoryFile.create(room), 0, room)
    last = RingMemory(link, space).ring.views[-1][-1]
    start = last.ctypes.data - space.address
    assert start > 0 and start + last.nbytes <= room


def test_it_goes_only_where_memory_is_shared() -> None:
    ends = Ends((), (), one_process=False, share_memory=True)
    assert TRANSPORT.why_not(cast(Any, None), ends) == ""
    assert "share no memory" in TRANSPORT.why_not(
        cast(Any, None), ends._replace(share_memory=False)
    )


def test_only_a_link_that_somebody_watches_signals() -> None:
    sender, receiver = connected("shm")
    arrived = sender.box._carrier.arrived
    before = arrived.count()
    sender.send(message(1.0))
    assert arrived.count() == before and receiver.box.ready()
    receiver.box.wake(ThreadEvent())
    sender.send(message(2.0))
    assert arrived.count() > before
    receiver.close()  # ends the thread that watches
