"""Child processes: starting them, reading what they print, watching and ending them.

`as_child.py` is the other side: the behaviour of such a process.

The parent prints what its children print, line by line. Only the first line of a child's output is
not printed, but kept for `Child.first_line`. The last lines of a child's standard error are printed
and also kept, for `Child.poll`.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

LAST_BYTES = 4096
"""The bytes of a child's standard error that are kept: its last lines."""
KILL_SECONDS = 2.0
"""The seconds to wait for a child to end after killing it."""


class Child:
    """A child process with its own session, so that Ctrl-C in the terminal does not reach it."""

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        fds: Sequence[int] = (),
        says: Callable[[str, bool], None] | None = None,
    ) -> None:
        """Start the process. It inherits the file descriptors `fds`, with the same numbers.

        `says` is called with each line that it prints, and whether that is an error's line; by
        default, this process prints the line.
        """
        self._says = says or print_line
        self.popen = subprocess.Popen(
            argv,
            env=env,
            pass_fds=fds,
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._first: queue.Queue[str] = queue.Queue()
        self._last: deque[bytes] = deque()
        assert self.popen.stdout and self.popen.stderr
        self._readers = [
            _thread(self._read_output, self.popen.stdout),
            _thread(self._read_errors, self.popen.stderr),
        ]
        if stdin:
            assert self.popen.stdin
            with contextlib.suppress(BrokenPipeError), self.popen.stdin as pipe:
                pipe.write(stdin)

    @property
    def pid(self) -> int:
        return self.popen.pid

    def first_line(self, seconds: float) -> str:
        """Return the first line of the child's output, or "" if the child ended without output.

        Raise `TimeoutError` if there is neither a line nor an end within `seconds`.
        """
        try:
            line = self._first.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError(f"process {self.pid} said nothing for {seconds:g} s") from None
        self._first.put(line)  # put back for the next call
        return line

    def poll(self) -> tuple[str, str] | None:
        """Return how the child ended and its last lines of standard error; None while it runs."""
        code = self.popen.poll()
        if code is None:
            return None
        for reader in self._readers:  # a time limit, as a grandchild may hold the pipe open
            reader.join(0.2)
        how = (
            f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        )
        return f"process {self.pid} {how}", b"".join(self._last).decode(errors="replace")

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for the child to end. Return True if it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(max(0.0, seconds))
            return True
        return False

    def kill(self, seconds: float) -> bool:
        """Kill the child, and wait up to `seconds` for its end. Return True if it has ended."""
        self.popen.kill()
        return self.wait(seconds)

    def _read_output(self, pipe: IO[bytes]) -> None:
        with pipe:
            self._first.put(pipe.readline().decode(errors="replace").strip())
            for line in pipe:
                self._says(line.decode(errors="replace"), False)

    def _read_errors(self, pipe: IO[bytes]) -> None:
        num_bytes = 0
        with pipe:
            for line in pipe:
                self._last.append(line)
                num_bytes += len(line)
                while num_bytes > LAST_BYTES and len(self._last) > 1:
                    num_bytes -= len(self._last.popleft())
                self._says(line.decode(errors="replace"), True)


def last_words(how: str, errors: str) -> str:
    """Return a message that says how a process ended, with its last lines of standard error."""
    hint = " Was there enough memory?" if signal.SIGKILL.name in how else ""
    last = f"\n{errors.rstrip()}" if errors.strip() else ""
    return f"{how}.{hint}{last}"


def end_all(children: Sequence[Child], grace: float) -> None:
    """Wait for children that were told to end. After `grace` seconds in all, kill the rest."""
    deadline = time.monotonic() + grace
    for child in children:
        if not child.wait(deadline - time.monotonic()):
            child.kill(KILL_SECONDS)


def at_end(owner: object, function: Callable[..., Any], *arguments: Any) -> weakref.finalize:
    """Call `function` when `owner` is garbage-collected or Python exits, to end its children.

    A fork of this process does not call `function`, because the children are not its own.
    """
    return weakref.finalize(owner, _call_in, os.getpid(), function, arguments)


def _call_in(pid: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    if os.getpid() == pid:
        function(*arguments)


def _thread(function: Callable[[IO[bytes]], None], pipe: IO[bytes]) -> threading.Thread:
    thread = threading.Thread(target=function, args=(pipe,), daemon=True)
    thread.start()
    return thread


def print_line(line: str, is_error: bool) -> None:
    """Print a line that a child has printed."""
    to = sys.stderr if is_error else sys.stdout
    with contextlib.suppress(ValueError, OSError):  # `to` is closed, or nobody reads it any more
        to.write(line)
        to.flush()
