"""The behaviour of a child process towards the hocket process that started it (`children.py`)."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any, cast

from hocket.system.network import Network, set_network
from hocket.system.network.listener import Expected, listener


def leave_signals() -> None:
    """Let this process ignore Ctrl-C and SIGTERM. The parent handles them, and ends this process.

    A scheduler sends SIGTERM to all processes of a job, so this process gets it as well.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # An empty handler instead of SIG_IGN, which programs that this process starts would inherit.
    signal.signal(signal.SIGTERM, lambda *_: None)
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))


def say_hello(line: str) -> None:
    """Print this process's first line of output, which the parent reads by `Child.first_line`."""
    print(line, flush=True)  # noqa: T201 (the parent reads it)
    cast(Any, sys.stdout).reconfigure(line_buffering=True)  # a sudden end loses no whole line


def expect_run(network: Network, purpose: str, name: str) -> Expected:
    """Listen for the run, and print the address as this process's first line.

    If that is impossible, end this process with a sentence that says why.
    """
    set_network(network)
    try:
        expected = listener().expect(purpose, name)
    except OSError as error:
        sys.exit(f"{error}. Correct the address at which the node listens, or its ports.")
    say_hello(expected.address)
    return expected


def wait_for_end_of(parent: int) -> None:
    """Return when the parent process has ended. Call this in a thread of its own.

    The connection to the parent is no sure sign of its end: a fork of the parent may keep it open,
    and the thread that reads from it in this process may be busy or hang.
    """
    while os.getppid() == parent:
        time.sleep(1.0)
