"""Between devices of one process: the sender starts the copy, so that it overlaps what follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from hocket.runtime.channels.transports.same_device import SameDevice


class DeviceToDevice(SameDevice):
    """Puts every array where its reader wants it, without a way through the host."""

    def __init__(self, capacity: int, homes: Sequence[Any], delay: float = 0.0) -> None:
        super().__init__(capacity, delay)
        self._homes = homes

    def send(self, message: list[Any]) -> None:
        super().send(jax.device_put(message, list(self._homes)))
