"""The part that the ends of our transports share: how they count and how they close."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

WRITER, READER = 0, 1


class Carrier(Protocol):
    """The queue or the ring between the two ends of a link."""

    @property
    def waited_ns(self) -> Sequence[int]:
        """The nanoseconds for which the writer and the reader have waited."""
        ...

    def close(self) -> None:
        """End every wait, now and later, at both ends, with `hocket.system.events.Closed`."""
        ...


C = TypeVar("C", bound=Carrier)


class LinkEnd(Generic[C]):
    """One end of a link, which counts its messages, and waits in the carrier between the ends."""

    side = READER

    def __init__(self, carrier: C) -> None:
        self._carrier = carrier
        self.sent = self.taken = 0

    @property
    def waited_ns(self) -> int:
        return self._carrier.waited_ns[self.side]

    def settle(self) -> None:
        """Return at once, because no work on a device is left behind by `send` or `receive`."""

    def close(self) -> None:
        self._carrier.close()
