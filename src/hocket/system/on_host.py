"""Computing on the CPU outside of `jit`, as physics engines do when they prepare a model."""

from __future__ import annotations

import contextlib
from typing import Any

import jax

from hocket.system.platforms import HOST


def on_host() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which operations outside of `jit` run on the CPU.

    On a GPU, JAX would first compile each such operation, and MJX makes thousands of them.
    """
    config: Any = jax.config
    if jax.default_backend() == HOST or config.jax_default_device is not None:
        return contextlib.nullcontext()
    try:
        return jax.default_device(jax.local_devices(backend=HOST)[0])
    except RuntimeError:  # JAX_PLATFORMS excludes the CPU
        return contextlib.nullcontext()
