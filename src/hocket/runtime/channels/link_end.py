"""The base class of the built-in transports' link ends: it counts messages, and closes the link."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

WRITER, READER = 0, 1


class Carrier(Protocol):
    """A queue or a ring, through which the two ends of a link exchange messages."""

    @property
    def waited_ns(self) -> Sequence[int]:
        """The nanoseconds for which the writer and the reader have waited, in this order."""
        ...

    def close(self) -> None:
        """Make all present and future waits at both ends raise `hocket.system.events.Closed`."""
        ...


C = TypeVar("C", bound=Carrier)


class LinkEnd(Generic[C]):
    """One end of a link. It counts its messages, which pass through the carrier of the link."""

    side = READER

    def __init__(self, carrier: C) -> None:
        self._carrier = carrier
        self.sent = self.taken = 0

    @property
    def waited_ns(self) -> int:
        return self._carrier.waited_ns[self.side]

    def settle(self) -> None:
        """Do nothing, because `send` and `receive` leave no unfinished work on a device."""

    def close(self) -> None:
        self._carrier.close()
