"""How values cross from one running instance to another: links, and the transports that carry them.

The modules, from a plan to the arrays that arrive:

joins.py        puts a value together from the parts that several instances send
links.py        links: one sender and one receiver of a transfer, and the arrays of their messages
late.py         messages that are under way between two blocks, and their names in a saved run
choice.py       chooses the transport that carries a link
transports/     has one file for each transport
link_end.py     is shared by the link ends of the built-in transports
packing.py      puts the small arrays of a message into one block
host_arrays.py  turns arrays of a device, random keys included, into numpy arrays and back
device_work.py  keeps the work that an instance has begun on its device and not waited for

A transport is an object with the members of `Transport`. The built-in transports are the files of
`transports/`. A channel names any other, as `Channel(transport="my_package.my_module:NAME")` or
`"my_file.py:NAME"`. An installed package adds its transports by the entry point
`hocket.transports`. To write a transport, the Protocols here are enough
(see `examples/own_transport.py`).
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
"""The address at which a receiver listens. If the sender is in another process, the address is
pickled on its way; otherwise it may be any object."""


class Ends(NamedTuple):
    """The devices of a link's two ends, and whether the ends share a process or memory.

    The sender and the receiver get equal `Ends`.
    """

    source: tuple[DeviceId, ...]
    """The devices of the sender. If the plan names none, this is empty, and the sender uses the
    first device of its process."""
    target: tuple[DeviceId, ...]
    """The devices of the receiver."""
    one_process: bool
    """True if both ends are threads of one process."""
    share_memory: bool
    """True if both ends can reach the shared memory that `Transport.room` asks for."""


@dataclass(frozen=True)
class Here:
    """The end of a link that is in this process, described for the transport.

    Most transports read only `sends`, which is True at the sending end.
    """

    sends: bool
    devices: tuple[Any, ...] = ()
    """The JAX devices on which the instance at this end computes."""
    homes: tuple[Any, ...] = ()
    """The sharding that the receiver wants for each array of a message. Empty at a sending end."""
    space: Space | None = None
    """The memory that both ends of the link share; None if `Transport.room` asked for none."""
    work: DeviceWork | None = None
    """A record of the work that this instance has begun on its device. A transport that is
    `device_ordered` must add its own work to the record."""


class EitherEnd(Protocol):
    """The members that both ends of a link have."""

    @property
    def waited_ns(self) -> int:
        """The nanoseconds for which this end has waited for the other end so far."""
        ...

    def settle(self) -> None:
        """Wait until the device has finished the work of this end. Raise any error of that work."""

    def close(self) -> None:
        """Make all present and future waits at both ends raise `hocket.system.events.Closed`."""


class Outbox(EitherEnd, Protocol):
    """The sending end of a link."""

    @property
    def sent(self) -> int:
        """The number of messages sent so far in this epoch."""
        ...

    def send(self, arrays: Sequence[Any]) -> None:
        """Send a message, waiting while the link is full. Raise `Closed` if the link is closed.

        The link has room for `link.slots` messages that nobody has received yet. The caller may
        change the arrays as soon as this returns.
        """
        ...


class Inbox(EitherEnd, Protocol):
    """The receiving end of a link."""

    @property
    def taken(self) -> int:
        """The number of messages received so far in this epoch."""
        ...

    def ready(self) -> bool:
        """Return True if `receive` can return a message without waiting."""
        ...

    def wake(self, event: Event) -> None:
        """From now on, signal `event` whenever a message arrives.

        A reader of several inboxes gives all of them the same event, to wait for any of them.
        """

    def receive(self) -> Sequence[Any]:
        """Take the oldest message, waiting for one if needed. Raise `Closed` if the link is closed.

        The arrays belong to the caller: no later message changes them.
        """
        ...


@runtime_checkable
class Transport(Protocol):
    """A way to carry messages from one instance to another.

    Links are made in two phases. First all receivers listen. When each sender has the address of
    its receiver, all ends connect. `listen` and `connect` never wait for the other end. When a run
    begins anew, all ends are closed, and both phases are repeated with a higher epoch. From then
    on, no message of an earlier epoch may arrive.

    A message has the arrays of `link.specs`, a list of numpy shapes and dtypes. In memory a message
    has `link.message_nbytes` bytes, in which its arrays lie as `link.views(buffer)` shows. The
    receiver must get exactly the bytes that were sent, but `link.specs` may differ between the two
    ends, because each end may see several small arrays as one block.
    """

    preference: float
    """The place of this transport in the order of choice, smallest first. A channel that names no
    transport gets the first one that can carry its link. The built-in transports have 0 to 30."""
    on_devices: bool
    """True if messages are lists of JAX arrays, which are handed over as they are. False if
    messages are lists of numpy arrays, as in `link.specs`."""
    device_ordered: bool
    """True if `send` accepts arrays that the device has not computed yet, because the device itself
    keeps the order of programs and messages. Then each end must report the work that it starts on
    the device to `here.work`, so that a busy device is not taken for a deadlock."""

    def why_not(self, link: Link, ends: Ends) -> str:
        """Return "" if this transport can carry the link, or else a sentence that says why not.

        `link.transport` is the name by which the channel asks for this transport. If it is "", this
        transport may decline a link that another transport carries faster.
        """
        ...

    def room(self, link: Link) -> int:
        """Return the bytes of shared memory that the two ends of this link need; 0 for none."""
        ...

    def listen(self, link: Link, here: Here) -> Address:
        """Drop all messages of the link, and prepare to receive. The receiver calls this."""

    def connect(self, link: Link, address: Address, here: Here, epoch: int) -> Outbox | Inbox:
        """Return the sending end if `here.sends`, or else the receiving end."""
        ...
