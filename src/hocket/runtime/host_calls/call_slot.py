"""The slot through which a compiled program on the CPU calls a host function.

A call through a slot is faster than XLA's callback into Python. If the host function has a version
in C, the call does not use Python at all.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from functools import cache

import jax
import numpy as np

from hocket.core.program.host import NativeCall, Specs
from hocket.runtime.host_calls.lowering import CALL_TARGET
from hocket.system.native import library, pointers

# Reentrant, because while a thread opens a slot, the garbage collector may close another slot in
# the same thread.
_changing = threading.RLock()
# The slots that programs may call. The library has only the addresses of their functions and
# arrays, so this dict keeps the slots alive. If a slot is closed during a call, it stays here,
# because the call uses its arrays and may never return.
_OPEN: dict[int, CallSlot] = {}


class CallSlot:
    """A host function that programs call by a number, with buffers for its arguments and results.

    `call` takes arrays with the shapes and dtypes of `ins`, and returns arrays like `outs`. If it
    raises, `failed` gets the exception, and the calling program ends with an error. After each call
    of `call`, `native` is asked for a C function. Once it returns one, programs call the C function
    instead.
    """

    def __init__(
        self,
        call: Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]],
        ins: Specs,
        outs: Specs,
        failed: Callable[[BaseException], None],
        native: Callable[[], NativeCall | None] = lambda: None,
    ) -> None:
        self._native: NativeCall | None = None
        self._ins = [np.zeros(x.shape, x.dtype) for x in ins]
        self._outs = [np.zeros(x.shape, x.dtype) for x in outs]

        def work() -> int:
            try:
                # Copies, because the function may keep them, and the next call overwrites `_ins`.
                results = call([x.copy() for x in self._ins])
                for room, x in zip(self._outs, results, strict=True):
                    np.copyto(room, x, casting="no")
                if self._native is None and (made := native()):
                    self._native = made
                    library().hocket_host_hasten(self.number, made.address, made.context)
            except BaseException as error:  # noqa: BLE001 (the caller is C, and cannot raise it)
                failed(error)
                return 1
            return 0

        self._work = _Function(work)  # kept alive here, because the library has only its address
        with _changing:
            self.number: int = _registered().hocket_host_open(
                self._work, len(ins), *pointers(self._ins), len(outs), *pointers(self._outs)
            )
            if self.number < 0:
                raise RuntimeError(
                    "too many host functions are open in this process: end some runs."
                )
            _OPEN[self.number] = self

    def note(self, noted: bool) -> None:
        """Turn the recording of each call's start and end time on or off. Drop earlier records."""
        library().hocket_host_note(self.number, int(noted))

    def noted(self) -> list[tuple[float, float]]:
        """Return the (start, end) times of all recorded calls, by the clock `time.perf_counter`."""
        times = np.zeros((library().hocket_host_noted(self.number, None, 0) // 2, 2))
        library().hocket_host_noted(self.number, times.ctypes.data, times.size)
        return [(start, end) for start, end in times.tolist()]

    def slow_down(self) -> bool:
        """If programs call a C function, have them call the Python function again.

        While a call in C is under way, change nothing and return False.
        """
        if self._native is not None and not library().hocket_host_slow(self.number):
            return False
        self._native = None
        return True

    def close(self) -> None:
        """Close the slot. A program that calls it from now on ends with an error."""
        with _changing:
            if _OPEN.get(self.number) is self and library().hocket_host_close(self.number):
                del _OPEN[self.number]


_Function = ctypes.CFUNCTYPE(ctypes.c_int)


@cache
def _registered() -> ctypes.CDLL:
    """Return the native library, after registering its function `hocket_host` with XLA."""
    handler = jax.ffi.pycapsule(library().hocket_host)
    jax.ffi.register_ffi_target(CALL_TARGET, handler, platform="cpu")
    return library()
