"""The newest version of the parameters: one writer, many readers, and nobody waits.

Each version is one message. A reader gets the newest one, and so may never see some versions.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from hocket.runtime.channels.packing import Packing, packing
from hocket.system.native import library
from hocket.system.ring import slot_layout

SLOTS = 3
"""The number of versions for which shared memory has room. A version can be read until the writer
begins the third one after it."""


class NewestHere:
    """The newest version of the parameters, for one process. Readers get the arrays uncopied."""

    packed = False

    def __init__(self) -> None:
        # A tuple is replaced at once, so a reader never gets one version with another's message.
        self._newest: tuple[int, list[Any]] = (0, [])

    def write(self, version: int, message: list[Any]) -> None:
        self._newest = version, message

    def read(self) -> tuple[int, Any]:
        return self._newest

    def empty(self) -> None:
        """Drop the message. Call only while nobody reads or writes."""
        self._newest = (0, [])


class NewestShared:
    """The newest version of the parameters, in memory that processes share.

    The writer copies a version in, and each reader copies it out. With `packed`, a writer or reader
    copies all small arrays as one block. The bytes in memory are the same either way, so each
    process may choose for itself.
    """

    def __init__(
        self, memory: mmap.mmap, offset: int, like: Sequence[Any], *, packed: bool = False
    ) -> None:
        self._library, self._packing = library(), packing(tuple(like))
        self.packed = packed and self._packing.pays()
        specs = self._specs(self._packing, packed=self.packed)
        self._memory, self._offset = memory, offset
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(memory, offset))
        starts, stride = slot_layout(specs)
        first = offset + self._library.hocket_latest_header_bytes()
        self._views = [
            [
                np.ndarray(shape, dtype, buffer=memory, offset=first + slot * stride + start)
                for (shape, dtype), start in zip(specs, starts, strict=True)
            ]
            for slot in range(SLOTS)
        ]

    @staticmethod
    def _specs(how: Packing, *, packed: bool) -> list[Any]:
        return [((1,), np.dtype(np.int64)), *how.specs(packed=packed)]

    @staticmethod
    def nbytes(like: Sequence[Any]) -> int:
        stride = slot_layout(NewestShared._specs(packing(tuple(like)), packed=False))[1]
        return library().hocket_latest_header_bytes() + SLOTS * stride

    def empty(self) -> None:
        """Drop the message. Call only while nobody reads or writes."""
        nbytes = self._library.hocket_latest_header_bytes()
        self._memory[self._offset : self._offset + nbytes] = bytes(nbytes)

    def write(self, version: int, message: list[Any]) -> None:
        arrays = [np.array([version]), *self._packing.to_slot(message, packed=self.packed)]
        # Write to the next slot, so that readers can still copy the newest message meanwhile.
        number = self._library.hocket_latest_begin(self._address)
        for view, x in zip(self._views[number % SLOTS], arrays, strict=True):
            np.copyto(view, x, casting="no")
        self._library.hocket_latest_publish(self._address)

    def read(self) -> tuple[int, Any]:
        while True:
            number = self._library.hocket_latest_newest(self._address)
            # No message is visible yet, though the ledger may already show its version.
            if not number:
                continue
            stamp, *views = self._views[number % SLOTS]
            version = int(stamp[0])
            arrays = [np.array(view) for view in views]
            message = self._packing.from_slot(arrays, packed=self.packed)
            # If the writer has begun to reuse the slot, the copy may mix two messages: read again.
            if self._library.hocket_latest_is_whole(self._address, number, SLOTS):
                return version, message


Newest: TypeAlias = NewestHere | NewestShared
"""The newest version of the parameters, kept in one process or in memory that processes share."""
