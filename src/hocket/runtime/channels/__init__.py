"""How values cross from one running instance to another: links, and the transports that carry them.

Upwards from what is agreed beforehand to the arrays that arrive:

joins.py        how the parts of a value become one again
links.py        one sender and one receiver of one transfer, and what a message of theirs holds
late.py         what is on its way between two blocks, by the names under which it is saved
choice.py       which transport carries a link
transports/     the transports, a file each
link_end.py     what the ends of our transports have in common
packing.py      the small arrays of a message as one block
host_arrays.py  arrays of a device as numpy has them, random keys among them
device_work.py  what an instance has begun on its device, where that keeps the order of messages

A transport is an object with the members of `Transport`. Ours are found by listing; another one is
named in a channel, `Channel(transport="my_package.my_module:NAME")` or `"my_file.py:NAME"`, or
comes with an installed package that has an entry point in the group `hocket.transports`. Whoever
writes one needs nothing of hocket but the Protocols here (`examples/own_transport.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from hocket.core.plan.device_id import DeviceId
from hocket.runtime.channels.device_work import DeviceWork
from hocket.runtime.channels.links import Link
from hocket.system.events import Event
from hocket.system.shared_memory import Space

Address: TypeAlias = Any
"""Where a receiver listens. It is pickled on its way to a sender in another process; within one
process it may be any object."""


class Ends(NamedTuple):
    """Where the two ends of a link are: the same for whoever asks."""

    source: tuple[DeviceId, ...]
    """The devices of the sender; none named: the first that its process has."""
    target: tuple[DeviceId, ...]
    """The devices of the receiver."""
    one_process: bool
    """True if both ends are threads of one process."""
    share_memory: bool
    """True if both can reach the shared memory that `Transport.room` asks for."""


@dataclass(frozen=True)
class Here:
    """One end of a link, in the process that has it; most transports need `sends` alone."""

    sends: bool
    devices: tuple[Any, ...] = ()
    """The devices of JAX's that the instance at this end computes on."""
    homes: tuple[Any, ...] = ()
    """For an end that receives: the sharding that it wants for each array of a message."""
    space: Space | None = None
    """The link's part of the shared memory, the same bytes at both ends; None where `room` is 0."""
    work: DeviceWork | None = None
    """For device-ordered transports: what else this instance has begun on its device."""


class EitherEnd(Protocol):
    """What both ends of a link have."""

    @property
    def waited_ns(self) -> int:
        """Nanoseconds so far for which this end has waited for the other."""
        ...

    def settle(self) -> None:
        """Wait until the device has done what this end has begun; raise what failed there."""

    def close(self) -> None:
        """End every wait, now and later, at both ends, with `hocket.system.events.Closed`."""


class Outbox(EitherEnd, Protocol):
    """The end of a link that sends."""

    @property
    def sent(self) -> int:
        """Messages handed over so far, in this epoch."""
        ...

    def send(self, arrays: Sequence[Any]) -> None:
        """Hand over a message, waiting while there is no room; `Closed` once the link is closed.

        The first `link.slots` messages find room though nobody receives any. The arrays may change
        as soon as this returns.
        """
        ...


class Inbox(EitherEnd, Protocol):
    """The end of a link that receives."""

    @property
    def taken(self) -> int:
        """Messages received so far, in this epoch."""
        ...

    def ready(self) -> bool:
        """Return whether `receive` would find a message and not wait."""
        ...

    def wake(self, event: Event) -> None:
        """Signal `event` whenever a message arrives, from now on.

        Whoever waits for any one of several inboxes gives all of them the same event.
        """

    def receive(self) -> Sequence[Any]:
        """Take the oldest message, waiting until there is one; `Closed` once the link is closed.

        The arrays are the caller's: no later message changes them.
        """
        ...


@runtime_checkable
class Transport(Protocol):
    """One way for messages from one instance to another.

    Links are made in two phases: all receivers listen, and when each sender has the address that
    its receiver gave, all ends connect. `listen` and `connect` never wait for the other end. When a
    run begins anew, all ends are closed, and both phases follow with a higher epoch: nothing that
    was sent in an earlier one may arrive.

    A message has the arrays of `link.specs` (shape and dtype, as numpy has them), which lie in
    `link.message_nbytes` bytes as `link.views(buffer)` shows. Those bytes are what has to arrive:
    the other end may see some small arrays of its own `link.specs` as one block.
    """

    preference: float
    """The order in which transports are asked `why_not`, lowest first, where a channel names none.
    Ours have 0 to 40."""
    on_devices: bool
    """True if messages are lists of JAX's arrays, handed over as they are; False if they are numpy
    arrays of `link.specs`."""
    device_ordered: bool
    """True if a message may be sent before it is computed, since the device itself keeps the order
    of programs and messages. Such a transport tells `here.work` what it has begun."""

    def why_not(self, link: Link, ends: Ends) -> str:
        """Why this link cannot, or should not, go this way, as a sentence; "" if it can.

        `link.transport` is not empty where the channel asks for this transport by name.
        """
        ...

    def room(self, link: Link) -> int:
        """The bytes of shared memory that this link needs; 0 for none."""
        ...

    def listen(self, link: Link, here: Here) -> Address:
        """Prepare to receive, with nothing on its way; called where the receiver is."""

    def connect(self, link: Link, address: Address, here: Here, epoch: int) -> Outbox | Inbox:
        """The sending end if `here.sends`, else the receiving one."""
        ...
