"""How a child process behaves towards the hocket process that started it; see `children.py`."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any, cast


def leave_signals() -> None:
    """Do nothing on Ctrl-C and SIGTERM: the parent handles them, and ends this process in time.

    This process gets SIGTERM too, because a scheduler sends it to all processes of a job.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A handler, not SIG_IGN: programs started from here would inherit that and ignore SIGTERM too.
    signal.signal(signal.SIGTERM, lambda *_: None)
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))


def say_hello(line: str) -> None:
    """Print the first line of output, which the parent reads with `Child.first_line`."""
    print(line, flush=True)  # noqa: T201 (the parent reads it)
    cast(Any, sys.stdout).reconfigure(line_buffering=True)  # so that a sudden end loses no output


def wait_for_end_of(parent: int) -> None:
    """Return when the parent process has ended. Call it in a thread of its own.

    A closed connection is no sure sign: a fork of the parent may hold it open, and the thread that
    reads from it here may be busy or hang.
    """
    while os.getppid() == parent:
        time.sleep(1.0)
