"""Files as a zip. The same files give the same zip, so its digest says if a node has them."""

from __future__ import annotations

import hashlib
import io
import stat
import zipfile
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from hocket.system.code.project import MAX_NBYTES, Project
from hocket.system.text import bytes_text

_TIME = (1980, 1, 1, 0, 0, 0)
_UNIX, _FAST = 3, 1


class Archive(NamedTuple):
    """A zip, and its digest."""

    digest: str
    data: bytes


def archive_of(project: Project) -> Archive:
    """Pack the files of a project. Their times and owners do not matter."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=_FAST) as into:
        for file in project.files:
            path = project.folder / file
            info = zipfile.ZipInfo(file.as_posix(), _TIME)
            info.create_system, info.compress_type = _UNIX, zipfile.ZIP_DEFLATED
            runs = path.stat().st_mode & stat.S_IXUSR
            info.external_attr = (stat.S_IFREG | (0o755 if runs else 0o644)) << 16
            into.writestr(info, path.read_bytes())
    data = packed.getvalue()
    return Archive(digest_of(data), data)


def digest_of(data: bytes | bytearray) -> str:
    """Return the SHA-256 of a zip, in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def unpack(data: bytes | bytearray, folder: Path) -> None:
    """Unpack a zip into an empty folder. Refuse paths that leave it, and files that are too large.

    A zip from `archive_of` has none of these, but whoever unpacks need not rely on that.
    """
    with _opened(data) as packed:
        files = packed.infolist()
        if (nbytes := sum(info.file_size for info in files)) > MAX_NBYTES:
            raise ValueError(
                f"the files would have {bytes_text(nbytes)}, and at most {bytes_text(MAX_NBYTES)} "
                f"are unpacked."
            )
        for info in files:
            path = PurePosixPath(info.filename)
            if path.is_absolute() or ".." in path.parts:
                raise ValueError(f"the file `{info.filename}` would lie outside of the folder.")
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(packed.read(info))
            target.chmod(stat.S_IMODE(info.external_attr >> 16))


def _opened(data: bytes | bytearray) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(io.BytesIO(data))
    except zipfile.BadZipFile as error:
        raise ValueError(f"these {len(data)} bytes are no archive: {error}.") from error
