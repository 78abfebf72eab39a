"""Computing on the CPU while JAX traces, as physics engines do when they prepare a model."""

from __future__ import annotations

import contextlib
from typing import Any

import jax

from hocket.system.platforms import HOST


def on_host() -> contextlib.AbstractContextManager[Any]:
    """Inside this context, operations outside of `jit` run on the CPU.

    A GPU would compile each kind of operation first, and MJX has thousands of them.
    """
    config: Any = jax.config
    if jax.default_backend() == HOST or config.jax_default_device is not None:
        return contextlib.nullcontext()
    try:
        return jax.default_device(jax.local_devices(backend=HOST)[0])
    except RuntimeError:  # JAX_PLATFORMS excludes the CPU
        return contextlib.nullcontext()
