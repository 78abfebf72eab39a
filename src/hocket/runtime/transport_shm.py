"""Between processes of one machine: through a ring of slots in shared memory."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from hocket.runtime.arena import Arena
from hocket.runtime.host_arrays import from_host, host_spec, to_host
from hocket.runtime.ring import Ring
from hocket.runtime.route import Link

_STAMP = ((1,), np.dtype(np.float64))  # when a delayed message may be read


class SharedMemory:
    """A link of a plan as a ring: copied into a slot by the sender, out of it by the receiver."""

    def __init__(self, arena: Arena, offset: int, link: Link, delay: float = 0.0) -> None:
        self._ring = Ring(arena.memory, offset, link.slots, self._specs(link, delay))
        self._like, self._delay = link.specs, delay

    @staticmethod
    def nbytes(link: Link, delay: float = 0.0) -> int:
        return Ring.nbytes(link.slots, SharedMemory._specs(link, delay))

    @staticmethod
    def _specs(link: Link, delay: float) -> list[Any]:
        return [*map(host_spec, link.specs), *([_STAMP] if delay else [])]

    @property
    def waited(self) -> tuple[int, int]:
        return self._ring.waited_ns

    def send(self, message: list[Any]) -> None:
        arrays = [to_host(x) for x in message]
        if self._delay:
            arrays.append(np.array([time.monotonic() + self._delay]))
        self._ring.send(arrays)

    def receive(self) -> list[Any]:
        with self._ring.lease() as views:
            if self._delay:
                time.sleep(max(0.0, float(views[-1][0]) - time.monotonic()))
            # Copied before the slot is used again: JAX would take aligned memory as it is.
            found = [np.array(view) for view in views[: len(self._like)]]
        return [from_host(x, like) for x, like in zip(found, self._like, strict=True)]

    def empty(self) -> None:
        """Without messages again; nobody may be using it."""
        self._ring.initialise()
