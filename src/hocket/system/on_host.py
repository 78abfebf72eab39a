"""Where it happens that tracing computes something, as physics do with the numbers of a model."""

from __future__ import annotations

import contextlib
from typing import Any

import jax

from hocket.system.platforms import HOST


def on_host() -> contextlib.AbstractContextManager[Any]:
    """Within, what is computed at once is computed by the CPU.

    For a GPU each kind of operation would be compiled first, and MJX has thousands of them.
    """
    config: Any = jax.config
    if jax.default_backend() == HOST or config.jax_default_device is not None:
        return contextlib.nullcontext()
    try:
        return jax.default_device(jax.local_devices(backend=HOST)[0])
    except RuntimeError:  # JAX_PLATFORMS leaves it out
        return contextlib.nullcontext()
