"""The persistent cache of compiled programs: the second start of a program compiles nothing."""

from __future__ import annotations

import os
from pathlib import Path

import jax


def enable_cache() -> None:
    """Keep compiled programs in the user's cache directory, unless JAX already uses another."""
    if jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    jax.config.update("jax_compilation_cache_dir", str(Path(root) / "hocket" / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
