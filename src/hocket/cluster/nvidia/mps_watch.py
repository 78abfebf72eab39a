"""Ends an MPS daemon of ours, also where its owner was killed: `mps_watch.py CONTROL FOLDER`.

It waits for the other end of its input, which only that process holds. Stands alone: it is run by
its path, so that nothing else is imported.
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
"""Seconds that clients get to finish before the server is told to end without them."""
QUIT_SECONDS = CLIENT_SECONDS + 3.0
"""Seconds that the daemon gets to end before it is killed."""
ANSWER_SECONDS = 5.0


def main() -> None:
    """Wait until the process that started this one is gone or done, then end its daemon."""
    control, folder, parent = sys.argv[1], Path(sys.argv[2]), os.getppid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a scheduler sends it to all processes of a job
    # What that process has forked may hold the other end too; but then this one is no child of it.
    while os.getppid() == parent and not select.select([0], [], [], LOOK_SECONDS)[0]:
        pass
    end_daemon(control, folder)


def environment(folder: Path) -> dict[str, str]:
    """This process's environment, with the daemon of `folder` and no other."""
    mine = {name: x for name, x in os.environ.items() if not name.startswith("CUDA_MPS_")}
    return mine | where(folder)


def where(folder: Path) -> dict[str, str]:
    """The variables that lead a process to the daemon of `folder`."""
    return {
        "CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"),
        "CUDA_MPS_LOG_DIRECTORY": str(folder / "log"),
    }


def ask(control: str, folder: Path, command: str, seconds: float = ANSWER_SECONDS) -> str | None:
    """The daemon's answer; None if it gives none, or not in time."""
    try:
        answer = subprocess.run(
            [control], input=f"{command}\n", capture_output=True, text=True, timeout=seconds,
            env=environment(folder), check=False,
        )  # fmt: skip
    except (subprocess.TimeoutExpired, OSError):
        return None
    return answer.stdout if answer.returncode == 0 else None


def end_daemon(control: str, folder: Path) -> None:
    """Let the daemon and its servers end, by force where they do not; remove the folder.

    Once more does nothing.
    """
    if not folder.exists():
        return
    deadline = time.monotonic() + QUIT_SECONDS
    if (folder / "pipe").is_dir() and any((folder / "pipe").iterdir()):  # one has started
        ask(control, folder, f"quit -t {CLIENT_SECONDS}", QUIT_SECONDS)
    while processes(folder) and time.monotonic() < deadline:
        time.sleep(0.02)
    for pid in processes(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


def processes(folder: Path) -> list[int]:
    """The daemon of `folder` and its servers: of all MPS processes, those with its variable."""
    daemon = ""
    with contextlib.suppress(OSError):  # it has not come so far, or has ended
        daemon = (folder / "pipe" / "nvidia-cuda-mps-control.pid").read_text().strip()
    mark = b"CUDA_MPS_PIPE_DIRECTORY=" + os.fsencode(folder / "pipe")
    pids: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has just ended, or is another user's
                if b"nvidia-cuda-mps" not in (entry / "cmdline").read_bytes():
                    continue
                told = entry.name == daemon
                if told or mark in (entry / "environ").read_bytes().split(b"\0"):
                    pids.append(int(entry.name))
    return pids


if __name__ == "__main__":
    main()
