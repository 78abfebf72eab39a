"""Memory that several processes share, without a name: nothing of it can be left behind."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
from pathlib import Path
from typing import NamedTuple


class MemoryFile:
    """A memfd and this process's mapping of it, all zeros at first.

    Whoever starts a process passes `fd` on (`subprocess.Popen(..., pass_fds=[file.fd])`), and the
    other side maps the same memory:

        file = MemoryFile.create(1 << 20)
        there = MemoryFile.attach(file.fd, 1 << 20)
        file.memory[0] = 7         # there.memory[0] is 7
    """

    def __init__(self, fd: int, nbytes: int) -> None:
        self.fd, self.nbytes = fd, nbytes
        # Faulting pages in one by one costs more than the first copy into them.
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
        self.memory = mmap.mmap(fd, nbytes, flags=flags)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    @staticmethod
    def create(nbytes: int) -> MemoryFile:
        """New memory; an `OSError` where the machine has not that much, not a fault in use."""
        if nbytes > _available():
            raise _refusal(nbytes, f"{_available() / 2**20:.1f} MiB are left")
        fd = os.memfd_create("hocket")
        try:
            os.posix_fallocate(fd, 0, nbytes)
        except OSError as error:
            os.close(fd)
            raise _refusal(nbytes, str(error.strerror)) from None
        return MemoryFile(fd, nbytes)

    @staticmethod
    def attach(fd: int, nbytes: int) -> MemoryFile:
        """The memory behind a descriptor that another process has passed on."""
        return MemoryFile(fd, nbytes)

    def close(self) -> None:
        """Give the memory up; it goes once no process maps it and no array here looks into it."""
        os.close(self.fd)
        # Not `memory.close()`: an array over the memory does not keep it from being unmapped.
        del self.memory


class Space(NamedTuple):
    """A part of a memory file that somebody has for itself, all zeros at first."""

    file: MemoryFile
    offset: int
    nbytes: int

    @property
    def address(self) -> int:
        return self.file.address + self.offset

    def part(self, offset: int, nbytes: int) -> Space | None:
        """So many bytes of it; None for none."""
        return Space(self.file, self.offset + offset, nbytes) if nbytes else None


def pages(nbytes: int) -> int:
    """So many bytes, rounded up to whole pages."""
    return nbytes + -nbytes % 4096


def _available() -> float:
    """Bytes of memory left; asked first, since a memfd grows until the machine has none at all."""
    with open("/proc/meminfo") as lines:
        fields = dict(line.split(":") for line in lines)
    left = [1024 * float(fields["MemAvailable"].split()[0])]
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):  # "max", or another layout: no limit
        limit = float((group / "memory.max").read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        files = float(stat.get("inactive_file", 0))  # read once, and given up when asked for
        left.append(limit - float((group / "memory.current").read_text()) + files)
    return min(left)


def _refusal(nbytes: int, why: str) -> OSError:
    return OSError(
        errno.ENOMEM,
        f"no {nbytes / 2**20:.1f} MiB of shared memory to be had ({why}): free some, or use fewer "
        f"environments, smaller messages or fewer replicas",
    )
