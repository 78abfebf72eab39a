"""A keeper: it starts a program on the node of an engine such as Ray, and tells how it ends.

The engine runs the keeper in a process of its own there, with several threads. If that process
ends, however that happens, the system kills the program.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping, Sequence

from hocket.system.children import Child
from hocket.system.nodes import tethered

VISIBLE = "CUDA_VISIBLE_DEVICES"
_OF_RAY = ("RAY_", "OMP_NUM_THREADS", "PYTHONBREAKPOINT", "SPT_NOENV")
"""Variables that Ray sets for its own processes: OMP_NUM_THREADS=1, however many the cores."""


class Keeper:
    """One program on this node."""

    def __init__(self) -> None:
        self._child: Child | None = None
        self._has_begun = threading.Event()

    def start(
        self, arguments: Sequence[str], stdin: bytes, settings: Mapping[str, str], *, assigned: bool
    ) -> None:
        """Start a program of this Python, and wait for its end.

        It sees the GPUs that the engine has assigned; all GPUs if none were to be `assigned`.
        """
        env = {**clean(os.environ, assigned=assigned), **settings}
        # This thread waits for the program, so it may be the one to which the program is tethered.
        argv = (sys.executable, *arguments)
        tether = (sys.executable, "-I", "-S", tethered.__file__, str(os.getpid()))
        try:
            self._child = Child((*tether, *argv), env, stdin)
        finally:
            self._has_begun.set()
        self._child.popen.wait()

    def hello(self) -> str:
        """Return the first line that the program prints; "" if it ends without one."""
        return self._begun().first_line(threading.TIMEOUT_MAX)

    def end(self) -> tuple[str, str]:
        """Wait for the end of the program. Return how it ended, and the last of its stderr."""
        child = self._begun()
        child.popen.wait()
        return child.poll() or ("ended", "")

    def kill(self, seconds: float) -> tuple[str, str] | None:
        """Kill the program. Return how it ended, or None if it has not within `seconds`."""
        child = self._begun()
        child.kill(seconds)
        return child.poll()

    def _begun(self) -> Child:
        self._has_begun.wait()
        if self._child is None:
            raise RuntimeError("the program could not be started")
        return self._child


def clean(env: Mapping[str, str], *, assigned: bool) -> dict[str, str]:
    """Return an environment without what Ray has set, but for the GPUs it has `assigned`."""
    leave = _OF_RAY if assigned else (*_OF_RAY, VISIBLE)
    return {name: value for name, value in env.items() if not name.startswith(leave)}
