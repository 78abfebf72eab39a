"""The steps of a pool of environments whose `send` and `recv` XLA can call, without Python."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hocket.core.program.host import NativeCall
from hocket.system.native import PATH, library, pointers


class Offered(NamedTuple):
    """What a pool offers to XLA: two handlers of its FFI, and the pool itself as a number."""

    send: int
    recv: int
    handle: int


class NativePool:
    """A pool that `native/pool.cpp` steps; a step in which an episode ends it leaves to Python.

    `given` are the arrays that it sends, the actions last, and `found` those that it receives. Of
    the latter, `where` says which are the observations, rewards, ends and truncations.
    """

    def __init__(
        self, offered: Offered, given: Sequence[np.ndarray], found: Sequence[np.ndarray],
        where: Sequence[int], seed: np.ndarray, steps: np.ndarray,
    ) -> None:  # fmt: skip
        self._found, self._where = list(found), list(where)
        self._received = np.zeros(1, np.int32)
        self._kept = (*given, seed, steps)
        self._context: int = library().hocket_pool_open(
            *offered, len(seed), seed.ctypes.data, steps.ctypes.data, len(given), *pointers(given),
            len(found), *pointers(found), (ctypes.c_int64 * 4)(*where), self._received.ctypes.data,
        )  # fmt: skip
        weakref.finalize(self, library().hocket_pool_close, self._context).atexit = False

    @property
    def call(self) -> NativeCall:
        address = ctypes.cast(library().hocket_pool_step, ctypes.c_void_p).value
        assert address is not None
        return NativeCall(address, self._context, self)

    @property
    def has_received(self) -> bool:
        """Whether a step was sent and received, and Python has to see to it."""
        return bool(self._received[0])

    def take(self) -> list[np.ndarray]:
        """That step: observations, rewards, ends and truncations."""
        self._received[0] = 0
        return [self._found[k].copy() for k in self._where]


def offered(pool: Any) -> tuple[Offered, list[tuple[tuple[int, ...], np.dtype]]] | None:
    """What an EnvPool offers, and the arrays that it gives; None where it is something else."""
    if not PATH.is_file():
        return None
    parts = dict(pool._xla())
    if set(parts) != {"send", "recv"}:
        return None
    handle, (_, made), _ = parts["recv"]
    send, recv = (_address(parts[name][2][0]) for name in ("send", "recv"))
    found = [(tuple(shape), np.dtype(dtype)) for dtype, shape in made[1:]]
    return Offered(send, recv, int.from_bytes(handle, "little")), found


def _address(capsule: Any) -> int:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return get(capsule, None)
