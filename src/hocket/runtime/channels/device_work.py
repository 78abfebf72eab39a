"""What an instance has begun on its device, where the device keeps the order of its messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hocket.runtime.observe.status import WORKING


class DeviceWork:
    """The last of what each device-ordered end of an instance has begun.

    Such an end does not wait for the device. So while its host waits for the other instance, its
    device may be at work, and the other instance may wait for just that.
    """

    def __init__(self, status: Any) -> None:
        self._status = status
        self._last: dict[Any, Any] = {}  # by end
        self._settle: list[Callable[[], None]] = []

    def add(self, settle: Callable[[], None]) -> None:
        """Count with another end, which `settle` waits for."""
        self._settle.append(settle)

    def begun(self, end: Any, array: Any) -> None:
        """Note an array of the last program that an end has begun: it is ready when that ends."""
        self._last[end] = array

    def since(self) -> list[Any]:
        """What is begun by now, to ask about later."""
        return list(self._last.values())

    def settle(self) -> None:
        """Wait until the device has done it all: that is work, and no waiting for others."""
        phase = int(self._status["phase"])
        self.resume()
        for settle in self._settle:
            settle()
        self._status["phase"] = phase

    def resume(self) -> None:
        """Show that the instance waits no longer: a program may have to be compiled first."""
        self._status["phase"] = WORKING

    def forget(self) -> None:
        """Begin anew, without ends."""
        self._last.clear()
        self._settle.clear()


def is_busy(begun: list[Any]) -> bool:
    """Whether the device is still at work on some of this."""
    return any(not x.is_ready() for x in begun)
