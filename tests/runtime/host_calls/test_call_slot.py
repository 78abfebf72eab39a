"""Host functions that compiled programs call by themselves."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hocket.core.program.host import NativeCall
from hocket.runtime.host_calls.call_slot import CallSlot
from hocket.runtime.host_calls.lowering import CALL_TARGET

PAIR = [
    jax.ShapeDtypeStruct((3,), np.dtype(np.float32)),
    jax.ShapeDtypeStruct((2, 2), np.dtype(np.int32)),
]


@contextmanager
def opened(call: Any, failures: list[BaseException] | None = None) -> Iterator[CallSlot]:
    slot = CallSlot(call, PAIR, PAIR, ([] if failures is None else failures).append)
    try:
        yield slot
    finally:
        slot.close()


def program(slot: CallSlot, times: int = 1) -> Any:
    """Return a program that calls the function `times` times, each with the last call's results."""
    call = jax.ffi.ffi_call(CALL_TARGET, PAIR, has_side_effect=True)

    def body(_: Any, xs: Any) -> Any:
        return call(*xs, slot=np.int64(slot.number))

    return jax.jit(lambda *xs: jax.lax.fori_loop(0, times, body, list(xs)))


ARRAYS = (jnp.arange(3.0), jnp.zeros((2, 2), jnp.int32))


def test_a_loop_calls_it_in_turn() -> None:
    seen: list[float] = []

    def call(xs: Sequence[np.ndarray]) -> list[np.ndarray]:
        seen.append(float(xs[0][0]))
        return [xs[0] + 1, xs[1] + 2]

    with opened(call) as slot:
        a, b = program(slot, times=50)(*ARRAYS)
    assert seen == list(range(50))
    np.testing.assert_array_equal(a, np.arange(3.0) + 50)
    np.testing.assert_array_equal(b, np.full((2, 2), 100))


def test_a_program_ends_where_it_raises() -> None:
    def call(xs: Sequence[np.ndarray]) -> list[np.ndarray]:
        raise ValueError("no")

    failures: list[BaseException] = []
    with (
        opened(call, failures) as slot,
        pytest.raises(jax.errors.JaxRuntimeError, match="function failed"),
    ):
        jax.block_until_ready(program(slot)(*ARRAYS))
    assert [str(error) for error in failures] == ["no"]


ONE, SQUARE = np.zeros(3, np.float32), np.zeros((2, 2), np.int32)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "shorter"),
        ([np.zeros(4, np.float32), SQUARE], "broadcast"),
        ([ONE, SQUARE.astype(np.int64)], "Cannot cast"),
    ],
)
def test_what_it_must_give(given: list[np.ndarray], said: str) -> None:
    failures: list[BaseException] = []
    with (
        opened(lambda _: given, failures) as slot,
        pytest.raises(jax.errors.JaxRuntimeError, match="function failed"),
    ):
        jax.block_until_ready(program(slot)(*ARRAYS))
    assert said in str(failures[0])


def test_what_it_was_given_it_may_keep() -> None:
    kept: list[Sequence[np.ndarray]] = []

    def call(xs: Sequence[np.ndarray]) -> list[np.ndarray]:
        kept.append(xs)
        return [xs[0] + 1, xs[1]]

    with opened(call) as slot:
        jax.block_until_ready(program(slot, times=3)(*ARRAYS))
    assert [float(xs[0][0]) for xs in kept] == [0.0, 1.0, 2.0]


def test_a_closed_one_is_not_called() -> None:
    with opened(lambda xs: xs) as slot:
        fn = program(slot)
        jax.block_until_ready(fn(*ARRAYS))
    with pytest.raises(jax.errors.JaxRuntimeError, match="the host function is closed"):
        jax.block_until_ready(fn(*ARRAYS))


def test_other_arrays_are_refused() -> None:
    with opened(lambda xs: xs) as slot:
        call = jax.ffi.ffi_call(CALL_TARGET, PAIR[:1], has_side_effect=True)
        fn = jax.jit(lambda x: call(x, slot=np.int64(slot.number)))
        with pytest.raises(jax.errors.JaxRuntimeError, match="with other arrays"):
            jax.block_until_ready(fn(ARRAYS[0]))
        both = jax.ffi.ffi_call(CALL_TARGET, PAIR, has_side_effect=True)
        fn = jax.jit(lambda *xs: both(*xs, slot=np.int64(slot.number)))
        with pytest.raises(jax.errors.JaxRuntimeError, match="with arrays of other sizes"):
            jax.block_until_ready(fn(ARRAYS[0][:2], ARRAYS[1]))


def test_numbers_are_used_again_but_not_while_a_call_is_under_way() -> None:
    with opened(lambda xs: xs) as slot:
        number = slot.number
    go = threading.Event()

    def call(xs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        go.wait()
        return xs

    with opened(call) as busy:
        assert busy.number == number
        thread = threading.Thread(target=lambda: jax.block_until_ready(program(busy)(*ARRAYS)))
        thread.start()
        time.sleep(0.2)  # until it waits inside the call
    with opened(lambda xs: xs) as other:
        assert other.number != number
    go.set()
    thread.join()


def test_native_code_makes_calls_until_it_is_slowed_down() -> None:
    """The native function here leaves every other call to Python."""
    made: list[float] = []
    turns = iter(range(1000))

    def call(xs: Sequence[np.ndarray]) -> list[np.ndarray]:
        made.append(float(xs[0][0]))
        return [xs[0] + 1, xs[1]]

    @ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)
    def native(_context: Any, _frame: Any, ins: int, outs: int) -> int:
        if next(turns) % 2:
            return 0
        (taken, *_), (room, *_) = ((ctypes.c_void_p * 2).from_address(x) for x in (ins, outs))
        ctypes.memmove(
            room,
            (np.ctypeslib.as_array((ctypes.c_float * 3).from_address(taken)) + 10)
            .astype(np.float32)
            .ctypes.data,
            12,
        )
        return 1

    native_call = NativeCall(ctypes.cast(native, ctypes.c_void_p).value or 0, 0, native)
    slot = CallSlot(call, PAIR, PAIR, lambda _: None, lambda: native_call)
    fn = program(slot, times=5)
    assert float(fn(*ARRAYS)[0][0]) == 1 + 10 + 1 + 10 + 1
    assert made == [0.0, 11.0, 22.0]
    assert slot.slow_down()
    made.clear()
    assert float(program(slot)(*ARRAYS)[0][0]) == 1
    assert made == [0.0]
    slot.close()
