"""How a process behaves that another one of ours has started, see `hocket.system.children`."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any, cast


def leave_signals() -> None:
    """Ctrl-C and SIGTERM are for the process that started this one, which ends it in time.

    A scheduler sends SIGTERM to all processes of a job.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # SIGTERM is not ignored, since what is started from here would ignore it as well.
    signal.signal(signal.SIGTERM, lambda *_: None)
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))


def say_hello(line: str) -> None:
    """Say the first line, which is `Child.first_line` over there."""
    print(line, flush=True)  # noqa: T201 (which is how it is heard)
    cast(Any, sys.stdout).reconfigure(line_buffering=True)  # it may end at any moment


def wait_for_end_of(parent: int) -> None:
    """Return once the process that started this one has ended; for a thread of its own.

    A connection does not always tell: something that the parent has forked may hold it open, and
    whoever reads from it here may be busy or hang.
    """
    while os.getppid() == parent:
        time.sleep(1.0)
