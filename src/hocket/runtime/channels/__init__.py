"""What every transport between two instances offers."""

from __future__ import annotations

from typing import Any, Protocol


class Pipe(Protocol):
    """One transfer's way from one instance to another, with room for a number of messages.

    A message is a list of arrays of known shapes, and arrives as a sequence of them. `waited` are
    the nanoseconds for which the sender, and the receiver, had to wait for the other.
    """

    def send(self, message: list[Any]) -> None:
        """Hand over a message, waiting while there is no room."""
        ...

    def receive(self) -> Any:
        """Take the oldest message, waiting until there is one."""
        ...

    @property
    def waited(self) -> tuple[int, int]: ...
