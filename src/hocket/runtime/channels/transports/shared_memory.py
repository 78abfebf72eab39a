"""Between processes of one machine: through a ring of slots in shared memory."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from hocket.runtime.channels.links import Link
from hocket.runtime.channels.packing import packing
from hocket.system.ring import Ring
from hocket.system.shared_memory import Arena

_STAMP = ((1,), np.dtype(np.float64))  # when a delayed message may be read


class SharedMemory:
    """A link of a plan as a ring: copied into a slot by the sender, out of it by the receiver.

    An end that is `packed` sends its small arrays as one, and receives them so.
    """

    def __init__(
        self, arena: Arena, offset: int, link: Link, delay: float = 0.0, *, packed: bool = False
    ) -> None:
        self._packing, self._delay = packing(link.specs), delay
        self._packed = packed and self._packing.pays()
        specs = self._specs(link, delay, packed=self._packed)
        self._ring = Ring(arena.memory, offset, link.slots, specs)

    @staticmethod
    def nbytes(link: Link, delay: float = 0.0) -> int:
        return Ring.nbytes(link.slots, SharedMemory._specs(link, delay))

    @staticmethod
    def _specs(link: Link, delay: float, *, packed: bool = False) -> list[Any]:
        return [*packing(link.specs).specs(packed=packed), *([_STAMP] if delay else [])]

    @property
    def waited(self) -> tuple[int, int]:
        return self._ring.waited_ns

    def send(self, message: list[Any]) -> None:
        arrays = self._packing.to_slot(message, packed=self._packed)
        if self._delay:
            arrays.append(np.array([time.monotonic() + self._delay]))
        self._ring.send(arrays)

    def receive(self) -> Any:
        with self._ring.lease() as views:
            if self._delay:
                time.sleep(max(0.0, float(views[-1][0]) - time.monotonic()))
            arrays = views[:-1] if self._delay else views
            return self._packing.from_slot(arrays, packed=self._packed)

    def empty(self) -> None:
        """Without messages again; nobody may be using it."""
        self._ring.initialise()
