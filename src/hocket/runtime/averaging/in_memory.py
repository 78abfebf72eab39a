"""Ways through memory that all replicas share: what they have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from hocket.runtime.averaging import Address, Epoch, Joined, Members

J = TypeVar("J", bound=Joined)


@dataclass(frozen=True)
class InMemory(Generic[J]):
    """A replica that the others find in the memory they share, so that it needs no address."""

    enter: Callable[[], J]
    """Takes its part of the memory. What replicas must tell each other goes through it, too."""
    address: Address = b""

    def join(self, addresses: Sequence[Address], epoch: Epoch) -> J:
        return self.enter()

    def close(self) -> None:
        """Nothing to give back: the memory belongs to the run."""


def without_memory(members: Members) -> str:
    """Why these replicas cannot average so, where they share no memory; or ""."""
    if members.shares_memory:
        return ""
    return "it goes through memory that all replicas share, and here they share none."
