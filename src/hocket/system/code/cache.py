"""The code that a node has received: a folder for each digest, kept for later runs.

Several stewards may use a cache at the same time. A folder appears in it complete, by being
renamed. Whoever uses a folder holds a lock of it, and only a folder without locks is removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from hocket.system.code.archive import digest_of, unpack

MAX_CACHE_NBYTES = 512 << 20
"""The bytes beyond which a cache removes the folders that were used longest ago."""


def cache_folder() -> Path:
    """Return the folder of this user's cache: `$XDG_CACHE_HOME/hocket/code` or in `~/.cache`."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "hocket" / "code"


class CodeCache:
    """The use that one process makes of a cache."""

    def __init__(self, root: Path, max_nbytes: int = MAX_CACHE_NBYTES) -> None:
        self._root, self._max_nbytes = root, max_nbytes
        self._incoming: dict[str, bytearray] = {}
        self._locks: dict[str, int] = {}
        """Digest -> a file descriptor that holds the lock of the folder."""

    def lacking(self, digests: Iterable[str]) -> list[str]:
        """Return the digests that the cache lacks. The folders of the others stay from now on."""
        return [digest for digest in digests if not self._hold(digest)]

    def add(self, digest: str, chunk: bytes) -> None:
        """Take the next bytes of the zip with this digest."""
        self._incoming.setdefault(digest, bytearray()).extend(chunk)

    def folders(self, digests: Iterable[str]) -> list[str]:
        """Return the folder of each digest, after unpacking the zips that have been added."""
        for digest, data in self._incoming.items():
            if digest_of(data) != digest:
                raise ValueError(f"the code with the digest {digest[:12]} has arrived damaged.")
            self._unpack(digest, data)
        if self._incoming:
            self._incoming.clear()
            self._make_room()
        return [str(self._root / digest) for digest in digests]

    def close(self) -> None:
        """Let others remove the folders."""
        while self._locks:
            os.close(self._locks.popitem()[1])

    def _unpack(self, digest: str, data: bytearray) -> None:
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".", dir=self._root))
        lock = _locked(folder)  # it stays with the folder when that is renamed
        try:
            unpack(data, folder)
            folder.rename(self._root / digest)
        except (OSError, ValueError):
            os.close(lock)
            shutil.rmtree(folder, ignore_errors=True)
            if not self._hold(digest):  # else another process was faster, with the same files
                raise
        else:
            self._locks[digest] = lock

    def _hold(self, digest: str) -> bool:
        """Lock the folder of a digest, and note its use. Return False if there is none."""
        folder = self._root / digest
        if digest in self._locks:
            return True
        with contextlib.suppress(OSError):
            lock = _locked(folder)
            try:
                # It may have been removed in the moment before it was locked.
                if os.path.samestat(folder.stat(), os.fstat(lock)):
                    os.utime(folder)
                    self._locks[digest] = os.dup(lock)
                    return True
            finally:
                os.close(lock)
        return False

    def _make_room(self) -> None:
        """Remove the folders that were used longest ago, until the others are small enough."""
        folders = [path for path in self._root.iterdir() if path.is_dir()]
        nbytes = {path: _nbytes(path) for path in folders}
        for path in sorted(folders, key=_last_use):
            if sum(nbytes.values()) <= self._max_nbytes:
                return
            if self._remove(path):
                del nbytes[path]

    def _remove(self, folder: Path) -> bool:
        """Remove a folder that nobody uses. Return False if somebody does."""
        try:
            lock = _locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # another process has removed it
            return True
        try:
            # It loses its name at once, so that nobody finds a part of it.
            gone = tempfile.mkdtemp(prefix=".", dir=self._root)
            folder.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
        finally:
            os.close(lock)
        return True


def _locked(folder: Path, how: int = fcntl.LOCK_SH) -> int:
    """Lock a folder, and return the file descriptor that holds the lock until it is closed."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, how)
    except OSError:
        os.close(lock)
        raise
    return lock


def _nbytes(folder: Path) -> int:
    nbytes = 0
    with contextlib.suppress(OSError):  # another process is removing it
        for path in folder.rglob("*"):
            nbytes += path.lstat().st_size
    return nbytes


def _last_use(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:  # it was removed in the meantime
        return 0.0
