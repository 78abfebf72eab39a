"""Programs on the CPU that run in the thread that calls them, not in one of XLA's threads.

XLA has as many threads as there are cores, and a program that waits for its environments would
block one of these threads for all other programs. Where waking a thread takes long, running in
another thread also costs a fifth of the speed. JAX has a setting that avoids this, but it must be
made before the first use of JAX, and applies to all programs. Instead, we use two properties of
callbacks: a program that contains a callback runs in the thread that calls the program, and a
program that is called from within a callback runs in the thread of the callback.
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
    """Call `work`, and return its result.

    Programs that `work` calls run in this thread if they are for a single CPU device.
    """
    # A future, because XLA passes on only the text of an exception in a callback.
    future: Future[Any] = Future()
    _here.job = partial(fulfil, future, work)
    try:
        jax.block_until_ready(_caller()())
    finally:
        _here.job = None
    # If XLA made the callback in another thread, it found no job there, and `work` was not called.
    # Then call `work` here, and its programs run in XLA's threads as usual.
    return future.result() if future.done() else work()


@cache
def _caller() -> Any:
    """Return a compiled program that only makes a callback, which runs the thread's `_here.job`."""
    on_cpu = jax.sharding.SingleDeviceSharding(jax.local_devices(backend="cpu")[0])

    def call() -> np.ndarray:
        job = getattr(_here, "job", None)
        if job is not None:
            job()
        return np.zeros((), np.int32)

    nothing = jax.ShapeDtypeStruct((), np.int32)
    program = jax.jit(lambda: jax.pure_callback(call, nothing), out_shardings=on_cpu)
    return program.lower().compile()
