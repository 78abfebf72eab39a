"""Child processes: started, heard, watched and ended, whoever they are.

The other side, how such a process behaves, is `as_child.py`.

What a child prints goes on to where this process prints, line by line. The first line of its output
is kept back, for who asks what the child said first; of its errors the last lines are kept as well,
for who asks how it ended.
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
"""What is kept of the errors of a child."""
KILL_SECONDS = 2.0
"""For how long a child that was killed is waited for."""


class Child:
    """One child process, in a session of its own, so that Ctrl-C does not reach it."""

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        fds: Sequence[int] = (),
    ) -> None:
        """`fds` are the file descriptors that it inherits, under the same numbers."""
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
        """The first line of its output, "" where it ended without one; or a `TimeoutError`."""
        try:
            line = self._first.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError(f"process {self.pid} said nothing for {seconds:g} s") from None
        self._first.put(line)  # for who asks again
        return line

    def poll(self) -> tuple[str, str] | None:
        """How it ended, and its last errors; None while it runs."""
        code = self.popen.poll()
        if code is None:
            return None
        for reader in self._readers:  # the rest of what it said; a child of its own may hold it
            reader.join(0.2)
        how = (
            f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        )
        return f"process {self.pid} {how}", b"".join(self._last).decode(errors="replace")

    def wait(self, seconds: float) -> bool:
        """Whether it has ended, after so many seconds at the most."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(max(0.0, seconds))
            return True
        return False

    def kill(self, seconds: float) -> bool:
        """End it by force. Whether it has ended, after so many seconds at the most."""
        self.popen.kill()
        return self.wait(seconds)

    def _read_output(self, pipe: IO[bytes]) -> None:
        with pipe:
            self._first.put(pipe.readline().decode(errors="replace").strip())
            for line in pipe:
                _pass_on(line, sys.stdout)

    def _read_errors(self, pipe: IO[bytes]) -> None:
        kept = 0
        with pipe:
            for line in pipe:
                self._last.append(line)
                kept += len(line)
                while kept > LAST_BYTES and len(self._last) > 1:
                    kept -= len(self._last.popleft())
                _pass_on(line, sys.stderr)


def last_words(how: str, errors: str) -> str:
    """How a process ended and what it said last, for people."""
    hint = " Was there enough memory?" if signal.SIGKILL.name in how else ""
    last = f"\n{errors.rstrip()}" if errors.strip() else ""
    return f"{how}.{hint}{last}"


def end_all(children: Sequence[Child], grace: float) -> None:
    """Let children end that were told to; by force where one does not within the grace of all."""
    deadline = time.monotonic() + grace
    for child in children:
        if not child.wait(deadline - time.monotonic()):
            child.kill(KILL_SECONDS)


def at_end(owner: object, function: Callable[..., Any], *arguments: Any) -> weakref.finalize:
    """Call once `owner` is gone, or Python ends: what ends the children that belong to it.

    Not in a fork of this process, whose children they are not.
    """
    return weakref.finalize(owner, _here_alone, os.getpid(), function, arguments)


def _here_alone(pid: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    if os.getpid() == pid:
        function(*arguments)


def _thread(function: Callable[[IO[bytes]], None], pipe: IO[bytes]) -> threading.Thread:
    thread = threading.Thread(target=function, args=(pipe,), daemon=True)
    thread.start()
    return thread


def _pass_on(line: bytes, to: IO[str]) -> None:
    with contextlib.suppress(ValueError, OSError):  # closed, or nobody is there any more
        to.write(line.decode(errors="replace"))
        to.flush()
