"""The work that an instance has begun on its device and has not waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hocket.runtime.observe.status import WORKING


class DeviceWork:
    """The work that the device-ordered link ends of an instance have begun on its device.

    Such an end does not wait for the device. So while the instance waits for another instance, its
    own device may still be at work, and the other instance may be waiting for that very work.
    """

    def __init__(self, status: Any) -> None:
        self._status = status
        self._last: dict[Any, Any] = {}  # end -> an output of the last program it began
        self._settle: list[Callable[[], None]] = []

    def add(self, settle: Callable[[], None]) -> None:
        """Add a link end. `settle` waits for the work that this end has begun on the device."""
        self._settle.append(settle)

    def begun(self, end: Any, array: Any) -> None:
        """Note that an end of a link has begun work, which is over when `array` is ready."""
        self._last[end] = array

    def since(self) -> list[Any]:
        """Return, for each link end, the latest array that it passed to `begun`.

        An array is ready when the device has finished the work that it stands for.
        """
        return list(self._last.values())

    def settle(self) -> None:
        """Wait until the device has finished the work of all ends.

        Meanwhile the status shows this instance at work. If it showed a wait for the other
        instance, two instances that both wait for their own devices would look like a deadlock.
        """
        phase = int(self._status["phase"])
        self.resume()
        for settle in self._settle:
            settle()
        self._status["phase"] = phase

    def resume(self) -> None:
        """Set this instance's status to working, because it may now compile its next program."""
        self._status["phase"] = WORKING

    def forget(self) -> None:
        """Drop all link ends and the record of their work. Call this when a run begins anew."""
        self._last.clear()
        self._settle.clear()


def is_busy(begun: list[Any]) -> bool:
    """Return True if the device is still at work on `begun`, which `DeviceWork.since` returned."""
    return any(not x.is_ready() for x in begun)
