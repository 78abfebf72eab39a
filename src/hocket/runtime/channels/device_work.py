"""The work that an instance has begun on a device that keeps the order of its messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hocket.runtime.observe.status import WORKING


class DeviceWork:
    """The last work that each device-ordered end of an instance has begun.

    Such an end does not wait for the device. So while its host waits for the other instance, its
    device may still be at work, and the other instance may be waiting for that very work.
    """

    def __init__(self, status: Any) -> None:
        self._status = status
        self._last: dict[Any, Any] = {}  # the last noted array of each end
        self._settle: list[Callable[[], None]] = []

    def add(self, settle: Callable[[], None]) -> None:
        """Add an end, given its method that waits for the work it has begun."""
        self._settle.append(settle)

    def begun(self, end: Any, array: Any) -> None:
        """Note an array that is ready when the last program begun by an end has finished."""
        self._last[end] = array

    def since(self) -> list[Any]:
        """Return the work begun so far, for `is_busy` to ask about later."""
        return list(self._last.values())

    def settle(self) -> None:
        """Wait until the device has finished the work of all ends.

        Meanwhile the status shows work. If it showed a wait for the other instance, two instances
        that wait for their own devices would look like a deadlock.
        """
        phase = int(self._status["phase"])
        self.resume()
        for settle in self._settle:
            settle()
        self._status["phase"] = phase

    def resume(self) -> None:
        """Show work again, not a wait, since the next program may have to be compiled."""
        self._status["phase"] = WORKING

    def forget(self) -> None:
        """Drop all ends and their work, when a run begins anew."""
        self._last.clear()
        self._settle.clear()


def is_busy(begun: list[Any]) -> bool:
    """Return True if the device has not finished all of this work."""
    return any(not x.is_ready() for x in begun)
