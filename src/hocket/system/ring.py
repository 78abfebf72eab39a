"""Messages between two processes of one machine, through a ring of slots in shared memory.

Both sides know the shapes and dtypes of a message beforehand, so nothing is pickled: the writer
copies a message into a slot, and the reader reads it there.

The ring needs no lock. It has two counters: `head`, the number of messages published so far, and
`tail`, the number of messages released so far. Only the writer adds to `head`, and only the reader
adds to `tail`, so no update can be lost. A slot belongs to one side at a time: to the writer until
its message is published, then to the reader until the message is released, then to the writer
again. The compiled part (`native/ring.cpp`) has the counters, and the memory order that makes this
safe.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import byref, c_uint64
from typing import Any

import numpy as np

from hocket.system.events import Closed
from hocket.system.native import library

Spec = tuple[tuple[int, ...], Any]  # shape, dtype

SPIN_NS = 20_000 if (os.cpu_count() or 1) > 1 else 0
"""The nanoseconds for which a side spins before it sleeps. Most messages come within that time. On
a single core this is 0, because the other side could not run while this side spins."""

_SLICE_NS = 200_000_000  # the longest wait in C; Python handles signals after it
_TIMEOUT, _CLOSED = -1, -2


class Ring:
    """A bounded queue of messages from one process, the writer, to another, the reader.

    The memory of a new ring must be all zeros, as in a new file. `initialise` empties a used ring.

        specs = [((8, 4), np.float32), ((8,), np.int32)]
        file = MemoryFile.create(Ring.nbytes(2, specs))
        ring = Ring(file.memory, 0, 2, specs)      # the same in both processes
        ring.send([observation, action])            # here
        with ring.lease() as (observation, action): # there: views, valid until the block ends
            ...
    """

    def __init__(self, memory: mmap.mmap, offset: int, slots: int, specs: Sequence[Spec]) -> None:
        if offset % 64:
            raise ValueError(f"a ring must begin at a multiple of 64 bytes, but offset={offset}.")
        self._library, self._slots = library(), slots
        self._memory, self._offset = memory, offset
        # The address does not keep the memory mapped. `_memory` and `views` do.
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(memory, offset))
        """The address of the ring in this process."""
        starts, stride = slot_layout(specs)
        first = offset + self._library.hocket_ring_header_bytes()
        self.views: list[list[np.ndarray]] = [
            [
                np.ndarray(shape, dtype, buffer=memory, offset=first + slot * stride + start)
                for (shape, dtype), start in zip(specs, starts, strict=True)
            ]
            for slot in range(slots)
        ]
        """The arrays of each slot, as numpy views of the shared memory."""

    @staticmethod
    def nbytes(slots: int, specs: Sequence[Spec]) -> int:
        """Return the bytes of memory that a ring needs, a multiple of 64."""
        return library().hocket_ring_header_bytes() + slots * slot_layout(specs)[1]

    def initialise(self) -> None:
        """Make the ring empty and open. Call this only while neither side uses the ring."""
        # The slots may keep their bytes, because a slot is read only after a message is published.
        nbytes = self._library.hocket_ring_header_bytes()
        self._memory[self._offset : self._offset + nbytes] = bytes(nbytes)

    def send(self, arrays: Sequence[np.ndarray], timeout: float | None = None) -> None:
        """Copy a message into a free slot, waiting while the ring is full."""
        for view, array in zip(self.views[0], arrays, strict=True):
            if (array.shape, array.dtype) != (view.shape, view.dtype):
                raise ValueError(
                    f"this ring carries {view.dtype}{view.shape}, found {array.dtype}{array.shape}."
                )
        for view, array in zip(self.views[self.free_slot(timeout)], arrays, strict=True):
            np.copyto(view, array, casting="no")
        # Publish only now that the whole message is in its slot: the reader may read it at once.
        self._library.hocket_ring_publish(self.address)

    @contextmanager
    def lease(self, timeout: float | None = None) -> Iterator[list[np.ndarray]]:
        """Return a context with views of the oldest message, waiting until there is a message.

        The views are the slot itself, and the writer may fill the slot again when the context ends.
        Copy the arrays that are needed longer.
        """
        slot = self.full_slot(timeout)
        try:
            yield self.views[slot]
        finally:
            self._library.hocket_ring_release(self.address)

    def free_slot(self, timeout: float | None = None) -> int:
        """Return the next slot to fill, waiting until it is free. The caller must publish it."""
        return self._wait(self._library.hocket_ring_acquire, timeout)

    def full_slot(self, timeout: float | None = None) -> int:
        """Return the next slot to read, waiting until it is full. The caller must release it."""
        return self._wait(self._library.hocket_ring_lease, timeout)

    def close(self) -> None:
        """End all waits, now and later, with `Closed`. A third process may call this, too."""
        self._library.hocket_ring_close(self.address)

    @property
    def messages(self) -> int:
        """The number of messages that have been sent so far."""
        return self._counts()[0]

    @property
    def waited_ns(self) -> list[int]:
        """The nanoseconds for which the writer and the reader have waited, in this order."""
        return self._counts()[1:]

    def _counts(self) -> list[int]:
        counts = c_uint64(), c_uint64(), c_uint64()
        self._library.hocket_ring_counts(self.address, *map(byref, counts))
        return [count.value for count in counts]

    def _wait(self, call: Any, timeout: float | None) -> int:
        return wait_for_slot(call, (self.address, self._slots), timeout)


def wait_for_slot(call: Any, arguments: tuple[Any, ...], timeout: float | None) -> int:
    """Return the slot for which a C function waits, first by spinning, then asleep."""
    if timeout is None:
        end, slot = math.inf, call(*arguments, SPIN_NS, _SLICE_NS)
    else:
        end, slot = time.monotonic() + timeout, call(*arguments, SPIN_NS, 0)
    while slot == _TIMEOUT:
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"waited {timeout:g} s for the other side of a link")
        slot = call(*arguments, 0, int(min(1e9 * left, _SLICE_NS)))
    if slot == _CLOSED:
        raise Closed
    return slot


def slot_layout(specs: Sequence[Spec]) -> tuple[list[int], int]:
    """Return the offsets of the arrays in a slot, and the size of a slot: multiples of 64 bytes."""
    starts, end = [], 0
    for shape, dtype in specs:
        starts.append(end)
        end += math.prod(shape) * np.dtype(dtype).itemsize
        end += -end % 64
    return starts, max(end, 64)
