"""The free memory of this machine and the free space in its folders, and how much a run needs."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from hocket.system.text import bytes_text

SHARED = "/dev/shm"
MEMORY_NBYTES, SHARED_NBYTES, FOLDER_NBYTES = 1 << 30, 64 << 20, 256 << 20
"""The least free bytes of memory, of shared memory, and of the folder for temporary files."""
_GROUP = Path("/sys/fs/cgroup")


def free_bytes() -> dict[str, int]:
    """Return the free bytes of `memory`, of /dev/shm, and of the folder for temporary files.

    What this machine does not tell is left out.
    """
    memory = _memory()
    free = {} if memory is None else {"memory": memory}
    for folder in (SHARED, tempfile.gettempdir()):
        with contextlib.suppress(OSError):
            disk = os.statvfs(folder)
            free[folder] = disk.f_bavail * disk.f_frsize
    return free


def shortages(free: dict[str, int]) -> list[str]:
    """Return what there is too little of, with what to do about it, a line each."""
    least = {"memory": MEMORY_NBYTES, SHARED: SHARED_NBYTES}
    cures = {
        "memory": "end other programs there.",
        SHARED: "remove old files there or, in a container, give it more (`--shm-size=8g`).",
    }
    return [
        f"{'its memory' if name == 'memory' else f'`{name}`'} has only {bytes_text(nbytes)} free: "
        f"{cures.get(name, 'remove files, or let TMPDIR name another folder there.')}"
        for name, nbytes in free.items()
        if nbytes < least.get(name, FOLDER_NBYTES)
    ]


def _memory() -> int | None:
    """Return the free bytes of memory, or of this process's control group if these are fewer."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    free = [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable")]
    with contextlib.suppress(OSError, ValueError):  # no group, or one without a limit: "max"
        limit = int((_GROUP / "memory.max").read_text())
        free.append(max(0, limit - int((_GROUP / "memory.current").read_text())))
    return min(free, default=None)
