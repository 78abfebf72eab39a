"""Python's garbage collector, in a process that is ours alone."""

from __future__ import annotations

import gc


def keep_imports() -> None:
    """Let the collector skip what was imported so far, and look less often at the rest.

    Tracing makes many objects and drops few. By default the collector runs after every 700 new
    objects, and with JAX's modules to search, it took a tenth of the time until the first program.
    """
    if not gc.get_freeze_count():
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
