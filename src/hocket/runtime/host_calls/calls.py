"""The host functions of a running program, each opened when it is first called."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from hocket.core.program.host import HostFunction, LiveFunction, NativeCall, NativeFunction, Specs
from hocket.core.program.service import At, Service
from hocket.runtime.host_calls.call_slot import CallSlot
from hocket.runtime.host_calls.inline import run_inline
from hocket.runtime.host_calls.thread import WatchedThread
from hocket.system.events import Closed
from hocket.system.native import PATH

PREFIX = "host-"


class HostFunctions:
    """The open host functions of an instance. Each is opened when it is first called.

    If `inside` is True, a compiled program calls host functions while it runs. Only a program for a
    single CPU device can do so.
    """

    def __init__(self, name: str = "all", *, inside: bool = False) -> None:
        self._name = PREFIX + name.replace("/", "-")
        self.inside = inside and PATH.is_file()
        self._slots: dict[Any, CallSlot] = {}
        weakref.finalize(self, _close, self._slots).atexit = False
        self._thread: WatchedThread | None = None
        self._calling = threading.Lock()
        self._noted = False
        self.find: Callable[[Service], At] | None = None
        """A function that returns how to reach a given service, for host functions that use it."""
        self._live: dict[HostFunction, LiveFunction] = {}
        self._pieces: dict[str, bytes] = {}
        self._ended = False
        self.failure: BaseException | None = None
        """The first exception that a call raised, kept because XLA passes on only its text."""

    def get(self, of: HostFunction) -> LiveFunction:
        if self._ended:
            raise Closed
        if of not in self._live:
            at = self.find(of.service) if self.find and of.service else None
            self._live[of] = of.open(watched=self._thread is not None, at=at)
            if self._pieces:
                self._live[of].restore(self._pieces)
        return self._live[of]

    def __call__(self, of: HostFunction, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Call a host function from within a compiled program."""
        try:
            with self._calling:
                live = self.get(of)
                live.start(arrays)
                return live.finish()
        except BaseException as error:
            self._failed(error)
            raise

    def slot(self, of: HostFunction, ins: Specs, outs: Specs) -> int | None:
        """Return the number by which programs call a host function; None if `inside` is False."""
        if not self.inside:
            return None
        key = of, *((x.shape, x.dtype) for x in (*ins, *outs))
        if key not in self._slots:
            # A weak reference: a slot may stay open for ever, and must not keep `self` alive.
            me = weakref.ref(self)

            def call(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
                hosts = me()
                if hosts is None:
                    raise Closed
                return hosts(of, arrays)

            def native() -> NativeCall | None:
                live = hosts._live.get(of) if (hosts := me()) else None
                return live.native() if isinstance(live, NativeFunction) else None

            self._slots[key] = CallSlot(
                call, ins, outs, lambda e: (hosts := me()) and hosts._failed(e), native
            )
            self._slots[key].note(self._noted)
        return self._slots[key].number

    def note(self, noted: bool) -> None:
        """Turn the recording of each call's start and end time on or off. Drop earlier records."""
        self._noted = noted
        for slot in self._slots.values():
            slot.note(noted)

    def noted(self) -> list[tuple[str, float, float]]:
        """Return the (name, start, end) of each recorded call, in the order of the starts."""
        calls = [(key[0].name, *at) for key, slot in self._slots.items() for at in slot.noted()]
        return sorted(calls, key=lambda call: call[1])

    def run(self, program: Callable[[], Any]) -> Any:
        """Run a program, which may call host functions, in a separate thread.

        Raise an error if one of these calls hangs.
        """
        self._thread = self._thread or WatchedThread(self._name)
        try:
            return self._in_thread(lambda: run_inline(program))
        except Exception as error:  # noqa: BLE001 (JAX's, of several kinds)
            raise self.failure or error from None

    def load(self, late: Mapping[str, Any]) -> None:
        """Close all host functions. When opened again, they take the states saved in `late`."""
        self._in_thread(self._close_all)
        self.failure = None
        blobs = [np.asarray(x) for name, x in late.items() if name.startswith(PREFIX)]
        self._pieces = {name: piece for blob in blobs for name, piece in _unpack(blob).items()}

    def late(self) -> dict[str, np.ndarray]:
        """Return the states of all host functions in one named array.

        If the state of any of them cannot be saved, return an empty dictionary.
        """
        mine = [live for of, live in self._live.items() if of.service is None]
        states = self._in_thread(lambda: [live.snapshot() for live in mine]) or [self._pieces]
        if not all(states):
            return {}
        return {self._name: _pack({k: x for pieces in states for k, x in pieces.items()})}

    def end(self, *, at_rest: bool = True) -> None:
        """Close all host functions for good. A program that still runs cannot open them again.

        Pass `at_rest=False` if a thread may still be running a program of this instance. The slots,
        through which programs call host functions, then stay open for that program.
        """
        self._ended = True
        if at_rest and not (self._thread and self._thread.hangs):
            self._in_thread(self._close_all)
            _close(self._slots)
        else:
            self._close_all()  # the slots stay open, because a running program may call them

    def _in_thread(self, work: Callable[[], Any]) -> Any:
        """Call `work` in the thread of the host functions, or in this thread if they have none."""
        return self._thread.run(work, self._overdue) if self._thread else work()

    def _overdue(self) -> Exception | None:
        """Return an error if a host function hangs, else None. Waiting threads call this often."""
        return next(
            (error for live in list(self._live.values()) if (error := live.overdue())), None
        )

    def _failed(self, error: BaseException) -> None:
        self.failure = self.failure or error

    def _close_all(self) -> None:
        # `slow_down` returns False while a call in C is under way. That call may never return, and
        # it still uses its host function. In that case close no host function, but forget them all.
        are_slow = [slot.slow_down() for slot in self._slots.values()]
        if not all(are_slow):
            self._live.clear()
        while self._live:
            self._live.popitem()[1].close()


def _close(slots: dict[Any, CallSlot]) -> None:
    while slots:
        slots.popitem()[1].close()


def is_one_cpu(devices: Sequence[Any]) -> bool:
    """Return True if `devices` is one CPU, so that programs can call host functions as they run.

    A program on several devices would make each call once for every device.
    """
    return len(devices) == 1 and devices[0].platform == "cpu"


def _pack(pieces: Mapping[str, bytes]) -> np.ndarray:
    """Pack named byte strings into one array.

    Its size is a power of two, because JAX compiles a program for each size.
    """
    content = msgspec.msgpack.encode(dict(pieces))
    sized = len(content).to_bytes(8, "little") + content
    room = 1 << max(12, len(sized).bit_length())
    return np.frombuffer(bytearray(sized.ljust(room, b"\0")), np.uint8)


def _unpack(packed: np.ndarray) -> dict[str, bytes]:
    size = int.from_bytes(packed[:8].tobytes(), "little")
    return msgspec.msgpack.decode(packed[8 : 8 + size].tobytes(), type=dict[str, bytes])
