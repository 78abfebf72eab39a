"""The part of a link's ends that our transports have in common: what they count, and the close."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

WRITER, READER = 0, 1


class Carrier(Protocol):
    """The memory between the two ends of a link."""

    @property
    def waited_ns(self) -> Sequence[int]:
        """Nanoseconds for which the writer and the reader have waited."""
        ...

    def close(self) -> None:
        """End every wait, now and later, at both ends, with `hocket.system.events.Closed`."""
        ...


C = TypeVar("C", bound=Carrier)


class LinkEnd(Generic[C]):
    """One end of a link: it counts its messages, and waits in what carries them."""

    side = READER

    def __init__(self, carrier: C) -> None:
        self._carrier = carrier
        self.sent = self.taken = 0

    @property
    def waited_ns(self) -> int:
        return self._carrier.waited_ns[self.side]

    def settle(self) -> None:
        """Return at once: nothing is begun that others would not wait for by themselves."""

    def close(self) -> None:
        self._carrier.close()
