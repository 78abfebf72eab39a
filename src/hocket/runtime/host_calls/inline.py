"""Programs on the CPU that run in the thread that calls them, and not in one of XLA's.

XLA has as many threads as there are cores, and a program that waits for its environments would keep
one of them from everybody else; where waking a thread takes long, it also costs a fifth of the
speed. JAX can be told so only before its first use, and for all programs. But what a callback runs,
runs where the callback does; and a program with a callback, where it is called.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache, partial
from typing import Any

import jax
import numpy as np

from hocket.runtime.host_calls.thread import fulfil

_here = threading.local()


def run_inline(work: Callable[[], Any]) -> Any:
    """Do some work, and run all programs of one CPU device that it calls in this thread."""
    future: Future[Any] = Future()  # XLA would pass on no more than the text of an exception
    _here.job = partial(fulfil, future, work)
    try:
        jax.block_until_ready(_caller()())
    finally:
        _here.job = None
    return future.result() if future.done() else work()  # called back elsewhere: as it is usual


@cache
def _caller() -> Any:
    """A program that does nothing but call back."""
    on_cpu = jax.sharding.SingleDeviceSharding(jax.local_devices(backend="cpu")[0])

    def call() -> np.ndarray:
        job = getattr(_here, "job", None)
        if job is not None:
            job()
        return np.zeros((), np.int32)

    nothing = jax.ShapeDtypeStruct((), np.int32)
    program = jax.jit(lambda: jax.pure_callback(call, nothing), out_shardings=on_cpu)
    return program.lower().compile()
