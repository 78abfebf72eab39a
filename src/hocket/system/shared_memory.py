"""Memory that several processes share. It has no name, so a crash cannot leave it behind."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
from pathlib import Path
from typing import NamedTuple


class MemoryFile:
    """A memfd and its mapping in this process. New memory is all zeros.

    To share it, pass `fd` to a new process (`subprocess.Popen(..., pass_fds=[file.fd])`), which
    maps the same memory:

        file = MemoryFile.create(1 << 20)
        there = MemoryFile.attach(file.fd, 1 << 20)
        file.memory[0] = 7         # there.memory[0] is 7
    """

    def __init__(self, fd: int, nbytes: int) -> None:
        self.fd, self.nbytes = fd, nbytes
        # All pages are mapped now. A page fault for each page on its first use would cost more than
        # the copy into the page.
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
        self.memory = mmap.mmap(fd, nbytes, flags=flags)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    @staticmethod
    def create(nbytes: int) -> MemoryFile:
        """Reserve new memory. If too little is left, raise `OSError` now, not at its first use."""
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
        """Map the memory of a file descriptor that came from another process."""
        return MemoryFile(fd, nbytes)

    def close(self) -> None:
        """Drop this object's mapping. The memory is freed when no process and no array uses it."""
        os.close(self.fd)
        # Not `memory.close()`, which would unmap the memory even if numpy arrays still use it.
        del self.memory


class Space(NamedTuple):
    """A part of a memory file for a single purpose. It is all zeros at first."""

    file: MemoryFile
    offset: int
    nbytes: int

    @property
    def address(self) -> int:
        return self.file.address + self.offset

    def part(self, offset: int, nbytes: int) -> Space | None:
        """Return the part of this space at `offset`; None if `nbytes` is 0."""
        return Space(self.file, self.offset + offset, nbytes) if nbytes else None


def pages(nbytes: int) -> int:
    """Round a number of bytes up to whole pages."""
    return nbytes + -nbytes % 4096


def _available() -> float:
    """Return the bytes of memory that are left.

    Check this before a reservation: one that is too large would use up all memory before it fails.
    """
    with open("/proc/meminfo") as lines:
        fields = dict(line.split(":") for line in lines)
    left = [1024 * float(fields["MemAvailable"].split()[0])]
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):  # "max" is no limit; files may be missing
        limit = float((group / "memory.max").read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        files = float(stat.get("inactive_file", 0))  # file caches, which can be dropped
        left.append(limit - float((group / "memory.current").read_text()) + files)
    return min(left)


def _refusal(nbytes: int, why: str) -> OSError:
    return OSError(
        errno.ENOMEM,
        f"cannot reserve {nbytes / 2**20:.1f} MiB of shared memory ({why}): free memory, or use "
        f"fewer environments, smaller messages or fewer replicas",
    )
