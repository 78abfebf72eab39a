"""Settings of Python's garbage collector, for a process that runs only hocket."""

from __future__ import annotations

import gc


def keep_imports() -> None:
    """Let the collector skip the objects of all imports so far, and search the others less often.

    Tracing makes many objects and drops few. By default the collector runs after every 700 new
    objects. With JAX's modules to search, it took a tenth of the time until the first program ran.
    """
    if not gc.get_freeze_count():
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
