"""Programs that run in the thread that calls them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hocket.runtime.host_calls.call_slot import CallSlot
from hocket.runtime.host_calls.inline import run_inline
from hocket.runtime.host_calls.lowering import CALL_TARGET

SQUARE = [jax.ShapeDtypeStruct((64, 64), np.dtype(np.float32))]


def program(slot: CallSlot) -> Any:
    """Return a program with so much work that XLA would run it in one of its own threads."""
    call = jax.ffi.ffi_call(CALL_TARGET, SQUARE, has_side_effect=True)
    return jax.jit(lambda x: call(jnp.tanh(x @ x), slot=np.int64(slot.number))[0])


def test_many_programs_wait_at_once() -> None:
    """There are more of these programs than XLA has threads."""
    count = jax.local_device_count() + 8  # of 16 at most: each is two computations of 32
    together = threading.Barrier(count)
    where: set[int] = set()

    def call(xs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        where.add(threading.get_ident())
        together.wait(60)
        return xs

    failures: list[BaseException] = []
    slots = [CallSlot(call, SQUARE, SQUARE, failures.append) for _ in range(count)]
    results: list[Any] = []

    def work(slot: CallSlot) -> None:
        fn = program(slot)
        results.append(run_inline(lambda: jax.block_until_ready(fn(jnp.ones((64, 64))))))

    threads = [threading.Thread(target=work, args=(slot,)) for slot in slots]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for slot in slots:
        slot.close()
    assert where == {thread.ident for thread in threads}
    assert len(results) == count and not failures
    np.testing.assert_allclose(results[0], np.ones((64, 64)))


def test_what_is_raised_within_is_raised() -> None:
    error = ValueError("mine")

    def work() -> None:
        raise error

    with pytest.raises(ValueError, match="mine") as caught:
        run_inline(work)
    assert caught.value is error
