"""Archives are the same for the same files, and nothing is unpacked outside of the folder."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import pytest

from hocket.system.code import archive
from hocket.system.code.archive import archive_of, digest_of, unpack
from hocket.system.code.project import project_of


def write(folder: Path, text: str = "print()\n") -> Path:
    (folder / "p").mkdir(parents=True)
    (folder / "p" / "a.py").write_text(text)
    (folder / "run").write_text("#!/bin/sh\n")
    (folder / "run").chmod(0o755)
    return folder


def test_the_same_files_make_the_same_archive(tmp_path: Path) -> None:
    one, two = write(tmp_path / "one"), write(tmp_path / "two")
    os.utime(two / "p" / "a.py", (1, 1))
    (two / "p" / "a.py").chmod(0o600)
    first, again = (archive_of(project_of(folder)) for folder in (one, two))
    assert first == again and first.digest == digest_of(first.data)
    other = archive_of(project_of(write(tmp_path / "other", "print(1)\n")))
    assert other.digest != first.digest


def test_an_archive_unpacked(tmp_path: Path) -> None:
    made, to = archive_of(project_of(write(tmp_path / "from"))), tmp_path / "to"
    to.mkdir()
    unpack(made.data, to)
    assert (to / "p" / "a.py").read_text() == "print()\n"
    assert os.access(to / "run", os.X_OK)
    assert archive_of(project_of(to)) == made


@pytest.mark.parametrize("name", ["../out.py", "/tmp/hocket-out.py", "p/../../out.py"])
def test_a_path_that_leaves_the_folder(name: str, tmp_path: Path) -> None:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as into:
        into.writestr(name, "text")
    (tmp_path / "to").mkdir()
    with pytest.raises(ValueError, match=r"out\.py` would lie outside of the folder"):
        unpack(data.getvalue(), tmp_path / "to")
    assert [path.name for path in tmp_path.rglob("*")] == ["to"]


def test_an_archive_that_would_grow_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MAX_NBYTES", 1024)
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as into:
        into.writestr("zeros", bytes(2048))
    with pytest.raises(ValueError, match=r"would have 2\.0 KiB, and at most 1\.0 KiB"):
        unpack(data.getvalue(), tmp_path)
