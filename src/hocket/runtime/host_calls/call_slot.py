"""How a compiled program on the CPU calls a host function: without XLA's way through Python."""

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

_changing = threading.RLock()  # a collected one may be closed while another is made
# What programs may call. One that is at work when it is closed stays: it may never come back.
_OPEN: dict[int, CallSlot] = {}


class CallSlot:
    """A function that programs call by a number, with the arrays that both sides read and write.

    `call` takes such arrays as `ins` says, and gives such as `outs` says. If it does not, `failed`
    is told why, and the program that called it ends with an error. After a call, `native` may
    name a C function for those that follow.
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
                made = call([x.copy() for x in self._ins])  # which it may keep
                for room, x in zip(self._outs, made, strict=True):
                    np.copyto(room, x, casting="no")
                if self._native is None and (found := native()):
                    self._native = found
                    library().hocket_host_hasten(self.number, found.address, found.context)
            except BaseException as error:  # noqa: BLE001 (there is no Python above)
                failed(error)
                return 1
            return 0

        self._work = _Function(work)
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
        """Whether to note, from now on, when calls begin and end."""
        library().hocket_host_note(self.number, int(noted))

    def noted(self) -> list[tuple[float, float]]:
        """By the clock of `time.perf_counter`."""
        times = np.zeros((library().hocket_host_noted(self.number, None, 0) // 2, 2))
        library().hocket_host_noted(self.number, times.ctypes.data, times.size)
        return [(start, end) for start, end in times.tolist()]

    def slow_down(self) -> bool:
        """Have Python make all calls again; False if it cannot be told, since one is under way."""
        if self._native is not None and not library().hocket_host_slow(self.number):
            return False
        self._native = None
        return True

    def close(self) -> None:
        """Programs that call it from now on end with an error."""
        with _changing:
            if _OPEN.get(self.number) is self and library().hocket_host_close(self.number):
                del _OPEN[self.number]


_Function = ctypes.CFUNCTYPE(ctypes.c_int)


@cache
def _registered() -> ctypes.CDLL:
    """The library, with its function made known to XLA."""
    handler = jax.ffi.pycapsule(library().hocket_host)
    jax.ffi.register_ffi_target(CALL_TARGET, handler, platform="cpu")
    return library()
