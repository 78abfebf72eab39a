"""A program that ends our MPS daemon, even if its owner is killed: `mps_watch.py CONTROL FOLDER`.

Its standard input is a pipe from the owner. When the owner ends, the pipe closes, which is the sign
to end the daemon. The program is run by its path and imports nothing of hocket, so that it starts
fast and stays small.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

LOOK_SECONDS = 1.0
CLIENT_SECONDS = 5
"""Seconds that clients have to finish before the daemon ends anyway."""
QUIT_SECONDS = CLIENT_SECONDS + 3.0
"""Seconds that the daemon has to end before it is killed."""
ANSWER_SECONDS = 5.0


def main() -> None:
    """Wait until the parent process is gone or closes its daemon, then end the daemon."""
    control, folder, parent = sys.argv[1], Path(sys.argv[2]), os.getppid()
    # A job scheduler sends SIGTERM to all processes of a job, but the daemon still has to be ended.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # A fork of the parent may hold the input open after the parent has ended. So also look at the
    # parent's id, which changes when the parent ends.
    while os.getppid() == parent and not select.select([0], [], [], LOOK_SECONDS)[0]:
        pass
    end_daemon(control, folder)


def environment(folder: Path) -> dict[str, str]:
    """Return the environment variables of this process, changed to use `folder`'s daemon."""
    mine = {name: x for name, x in os.environ.items() if not name.startswith("CUDA_MPS_")}
    return mine | where(folder)


def where(folder: Path) -> dict[str, str]:
    """Return the environment variables that make a process a client of the daemon in `folder`."""
    return {
        "CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"),
        "CUDA_MPS_LOG_DIRECTORY": str(folder / "log"),
    }


def ask(control: str, folder: Path, command: str, seconds: float = ANSWER_SECONDS) -> str | None:
    """Send a command to the daemon and return its answer; None if it gives none in time."""
    try:
        answer = subprocess.run(
            [control], input=f"{command}\n", capture_output=True, text=True, timeout=seconds,
            env=environment(folder), check=False,
        )  # fmt: skip
    except (subprocess.TimeoutExpired, OSError):
        return None
    return answer.stdout if answer.returncode == 0 else None


def end_daemon(control: str, folder: Path) -> None:
    """Tell the daemon and its servers to end, kill those that do not, and remove the folder.

    A second call does nothing.
    """
    if not folder.exists():
        return
    deadline = time.monotonic() + QUIT_SECONDS
    if (folder / "pipe").is_dir() and any((folder / "pipe").iterdir()):  # a daemon has started here
        ask(control, folder, f"quit -t {CLIENT_SECONDS}", QUIT_SECONDS)
    while processes(folder) and time.monotonic() < deadline:
        time.sleep(0.02)
    for pid in processes(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


def processes(folder: Path) -> list[int]:
    """Return the process ids of the daemon of `folder` and its servers.

    A server is recognized by its environment, which names the folder.
    """
    daemon = ""
    with contextlib.suppress(OSError):  # the daemon has not written its id yet, or has ended
        daemon = (folder / "pipe" / "nvidia-cuda-mps-control.pid").read_text().strip()
    mark = b"CUDA_MPS_PIPE_DIRECTORY=" + os.fsencode(folder / "pipe")
    pids: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # the process has just ended, or is another user's
                if b"nvidia-cuda-mps" not in (entry / "cmdline").read_bytes():
                    continue
                is_daemon = entry.name == daemon
                if is_daemon or mark in (entry / "environ").read_bytes().split(b"\0"):
                    pids.append(int(entry.name))
    return pids


if __name__ == "__main__":
    main()
