"""From one to many, the newest only: no reader waits for the writer, nor it for a reader."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from hocket.native import library
from hocket.runtime.host_arrays import from_host, host_spec, to_host
from hocket.runtime.ring import slot_layout

SLOTS = 3


class Latest(Protocol):
    """Holds the newest message, and its version."""

    def write(self, version: int, message: list[Any]) -> None: ...

    def read(self) -> tuple[int, list[Any]]: ...


class LatestHere:
    """In one process: the arrays themselves."""

    def __init__(self) -> None:
        self._newest: tuple[int, list[Any]] = (0, [])

    def write(self, version: int, message: list[Any]) -> None:
        self._newest = version, message

    def read(self) -> tuple[int, list[Any]]:
        return self._newest


class LatestShared:
    """In memory that processes share: copied in by the writer, and out by each reader."""

    def __init__(self, memory: mmap.mmap, offset: int, specs: Sequence[Any]) -> None:
        self._library, self._like = library(), specs
        self._memory, self._offset = memory, offset
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(memory, offset))
        starts, stride = slot_layout(self._specs(specs))
        first = offset + self._library.hocket_latest_header_bytes()
        self._views = [
            [
                np.ndarray(shape, dtype, buffer=memory, offset=first + slot * stride + start)
                for (shape, dtype), start in zip(self._specs(specs), starts, strict=True)
            ]
            for slot in range(SLOTS)
        ]

    @staticmethod
    def _specs(specs: Sequence[Any]) -> list[Any]:
        return [((1,), np.dtype(np.int64)), *map(host_spec, specs)]

    @staticmethod
    def nbytes(specs: Sequence[Any]) -> int:
        stride = slot_layout(LatestShared._specs(specs))[1]
        return library().hocket_latest_header_bytes() + SLOTS * stride

    def empty(self) -> None:
        """Without a message again; nobody may be using it."""
        nbytes = self._library.hocket_latest_header_bytes()
        self._memory[self._offset : self._offset + nbytes] = bytes(nbytes)

    def write(self, version: int, message: list[Any]) -> None:
        number = self._library.hocket_latest_begin(self._address)
        views = self._views[number % SLOTS]
        for view, x in zip(views, [np.array([version]), *map(to_host, message)], strict=True):
            np.copyto(view, x, casting="no")
        self._library.hocket_latest_publish(self._address)

    def read(self) -> tuple[int, list[Any]]:
        while True:
            number = self._library.hocket_latest_newest(self._address)
            if not number:  # its version can be seen sooner than itself
                continue
            found = [np.array(view) for view in self._views[number % SLOTS]]
            if self._library.hocket_latest_is_whole(self._address, number, SLOTS):
                version, *message = found
                arrays = [from_host(x, like) for x, like in zip(message, self._like, strict=True)]
                return int(version[0]), arrays
