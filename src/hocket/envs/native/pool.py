"""Stepping an environment pool without Python, if it offers `send` and `recv` as XLA handlers."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hocket.core.program.host import NativeCall
from hocket.system.native import PATH, library, pointers


class Offered(NamedTuple):
    """The addresses of a pool's XLA handlers `send` and `recv`, and the pool's handle for them."""

    send: int
    recv: int
    handle: int


class NativePool:
    """An environment pool that C++ steps (`native/pool.cpp`).

    If an episode ends in a step, Python finishes that step. `given` are the arrays that the pool
    reads in each step, the actions last, and `results` are those that it writes. `where` has the
    indices of the observations, rewards, ends and truncations in `results`.
    """

    def __init__(
        self, offered: Offered, given: Sequence[np.ndarray], results: Sequence[np.ndarray],
        where: Sequence[int], seed: np.ndarray, steps: np.ndarray,
    ) -> None:  # fmt: skip
        self._results, self._where = list(results), list(where)
        self._received = np.zeros(1, np.int32)
        # C++ keeps pointers into these arrays, so they must live as long as the pool.
        self._kept = (*given, seed, steps)
        self._context: int = library().hocket_pool_open(
            *offered, len(seed), seed.ctypes.data, steps.ctypes.data, len(given), *pointers(given),
            len(results), *pointers(results), (ctypes.c_int64 * 4)(*where),
            self._received.ctypes.data,
        )  # fmt: skip
        weakref.finalize(self, library().hocket_pool_close, self._context).atexit = False

    @property
    def call(self) -> NativeCall:
        address = ctypes.cast(library().hocket_pool_step, ctypes.c_void_p).value
        assert address is not None
        return NativeCall(address, self._context, self)

    @property
    def has_received(self) -> bool:
        """True if C++ has received a step that Python has to finish, because an episode ended."""
        return bool(self._received[0])

    def take(self) -> list[np.ndarray]:
        """Return the step that C++ has received: observations, rewards, ends and truncations."""
        self._received[0] = 0
        return [self._results[k].copy() for k in self._where]


def offered(pool: Any) -> tuple[Offered, list[tuple[tuple[int, ...], np.dtype]]] | None:
    """Return a pool's XLA handlers, and the shapes and dtypes of the results of a step.

    Return None if C++ cannot step the pool.
    """
    if not PATH.is_file():
        return None
    parts = dict(pool._xla())
    if set(parts) != {"send", "recv"}:
        return None
    handle, (_, out_specs), _ = parts["recv"]
    send, recv = (_address(parts[name][2][0]) for name in ("send", "recv"))
    results = [(tuple(shape), np.dtype(dtype)) for dtype, shape in out_specs[1:]]
    return Offered(send, recv, int.from_bytes(handle, "little")), results


def _address(capsule: Any) -> int:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return get(capsule, None)
