"""How values cross from one running instance to another: links, and the transports that carry them.

The modules, from a plan to the arrays that arrive:

joins.py        how a value is put together from the parts that several instances send
links.py        one sender and one receiver of one transfer, and the arrays of their messages
late.py         messages on their way between two blocks, and the names under which they are saved
choice.py       the transport that carries a link
transports/     the transports, a file each
link_end.py     the part that the ends of our transports share
packing.py      the small arrays of a message as one block
host_arrays.py  arrays of a device as numpy arrays, random keys included
device_work.py  the work that an instance has begun on a device that keeps the order of messages

A transport is an object with the members of `Transport`. Ours are found by listing. Another one is
named in a channel, `Channel(transport="my_package.my_module:NAME")` or `"my_file.py:NAME"`, or
comes with an installed package that has an entry point in the group `hocket.transports`. Writing
one needs nothing from hocket except the Protocols here (`examples/own_transport.py`).
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
"""The address at which a receiver listens. It is pickled on its way to a sender in another process;
within one process it may be any object."""


class Ends(NamedTuple):
    """The devices of a link's two ends, and what the two share. Both ends are told the same."""

    source: tuple[DeviceId, ...]
    """The devices of the sender; empty for the first device of its process."""
    target: tuple[DeviceId, ...]
    """The devices of the receiver."""
    one_process: bool
    """True if both ends are threads of one process."""
    share_memory: bool
    """True if both can reach the shared memory that `Transport.room` asks for."""


@dataclass(frozen=True)
class Here:
    """One end of a link, as its own process sees it. Most transports read only `sends`."""

    sends: bool
    devices: tuple[Any, ...] = ()
    """The JAX devices on which the instance at this end computes."""
    homes: tuple[Any, ...] = ()
    """The sharding that a receiving end wants for each array of a message."""
    space: Space | None = None
    """The link's part of the shared memory, the same bytes at both ends; None if `room` is 0."""
    work: DeviceWork | None = None
    """All that this instance has begun on its device, for device-ordered transports."""


class EitherEnd(Protocol):
    """The members that both ends of a link have."""

    @property
    def waited_ns(self) -> int:
        """The nanoseconds for which this end has waited for the other so far."""
        ...

    def settle(self) -> None:
        """Wait until the device has finished the work that this end has begun; raise its errors."""

    def close(self) -> None:
        """End every wait, now and later, at both ends, with `hocket.system.events.Closed`."""


class Outbox(EitherEnd, Protocol):
    """The sending end of a link."""

    @property
    def sent(self) -> int:
        """The number of messages handed over so far in this epoch."""
        ...

    def send(self, arrays: Sequence[Any]) -> None:
        """Hand over a message, waiting while there is no room. Raise `Closed` on a closed link.

        There is room for the first `link.slots` messages even if nobody receives any. The arrays
        may change as soon as this returns.
        """
        ...


class Inbox(EitherEnd, Protocol):
    """The receiving end of a link."""

    @property
    def taken(self) -> int:
        """The number of messages received so far in this epoch."""
        ...

    def ready(self) -> bool:
        """Return True if `receive` would not have to wait."""
        ...

    def wake(self, event: Event) -> None:
        """From now on, signal `event` whenever a message arrives.

        To wait for any of several inboxes, give all of them the same event.
        """

    def receive(self) -> Sequence[Any]:
        """Take the oldest message, waiting until there is one. Raise `Closed` on a closed link.

        The arrays belong to the caller: no later message changes them.
        """
        ...


@runtime_checkable
class Transport(Protocol):
    """A way to carry messages from one instance to another.

    Links are made in two phases: all receivers listen, and when each sender has the address of its
    receiver, all ends connect. `listen` and `connect` never wait for the other end. When a run
    begins anew, all ends are closed, and both phases are repeated with a higher epoch. No message
    of an earlier epoch may arrive then.

    A message has the arrays of `link.specs` (shapes and dtypes of numpy). They lie in
    `link.message_nbytes` bytes as `link.views(buffer)` shows, and exactly those bytes must arrive.
    The two ends may see them as different arrays, because one end may have several small arrays as
    one block.
    """

    preference: float
    """The rank of this transport, lowest first, among those to try for a channel that names none.
    The built-in ones have 0 to 30."""
    on_devices: bool
    """True if messages are lists of JAX arrays, handed over as they are; False if they are the
    numpy arrays of `link.specs`."""
    device_ordered: bool
    """True if a message may be sent before it is computed, because the device itself keeps the
    order of programs and messages. Such a transport tells `here.work` what it has begun."""

    def why_not(self, link: Link, ends: Ends) -> str:
        """Return a sentence that says why not to carry this link, or "" if nothing is against it.

        `link.transport` is not empty if the channel asks for this transport by name.
        """
        ...

    def room(self, link: Link) -> int:
        """Return the bytes of shared memory that this link needs; 0 for none."""
        ...

    def listen(self, link: Link, here: Here) -> Address:
        """Empty the link, and prepare to receive. Called in the receiver's process."""

    def connect(self, link: Link, address: Address, here: Here, epoch: int) -> Outbox | Inbox:
        """Return the sending end if `here.sends`, else the receiving one."""
        ...
