"""The files of a folder that travel, and folders that are refused."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from hocket.errors import PlanError
from hocket.system.code import project
from hocket.system.code.origin import HOCKET
from hocket.system.code.project import chosen, project_of

NEVER = (
    ".hidden", ".git/config", ".venv/x.py", "__pycache__/a.pyc", "p/__pycache__/a.pyc",
    "runs/ppo-1/config.json", "env/pyvenv.cfg", "env/lib/x.py", "conda/conda-meta/history",
    "conda/lib/x.py",
)  # fmt: skip


def write(folder: Path, *files: str) -> None:
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("text")


def files(folder: Path) -> list[str]:
    return [file.as_posix() for file in project_of(folder).files]


def git(folder: Path, *arguments: str) -> None:
    if shutil.which("git") is None:
        pytest.skip("there is no git")
    subprocess.run(("git", "-C", str(folder), *arguments), check=True, capture_output=True)


def test_all_files_but_those_that_never_travel(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "p/b.py", "p/data.csv", *NEVER)
    made = project_of(tmp_path)
    assert files(tmp_path) == ["a.py", "p/b.py", "p/data.csv"]
    assert made.nbytes == 12 and str(made) == f"3 files of {tmp_path} (12 B)"


def test_files_that_git_does_not_ignore(tmp_path: Path) -> None:
    git(tmp_path, "init")
    write(tmp_path, "a.py", "gone.py", "p/new.py", "p/big.bin", "lib/x.so", *NEVER[5:])
    (tmp_path / ".gitignore").write_text("*.bin\n*.so\n")
    git(tmp_path, "add", "a.py", "gone.py")
    (tmp_path / "gone.py").unlink()
    assert files(tmp_path) == ["a.py", "p/new.py"]
    assert files(tmp_path / "p") == ["new.py"]
    # A folder that git ignores altogether was chosen for what is in it.
    (tmp_path / ".gitignore").write_text("lib/\n")
    assert files(tmp_path / "lib") == ["x.so"]


def test_another_repository_inside(tmp_path: Path) -> None:
    git(tmp_path, "init")
    write(tmp_path, "a.py", "inner/b.py", "inner/c.bin")
    git(tmp_path / "inner", "init")
    (tmp_path / "inner" / ".gitignore").write_text("*.bin\n")
    assert files(tmp_path) == ["a.py", "inner/b.py"]


def test_a_needed_file_travels_though_git_ignores_it(tmp_path: Path) -> None:
    git(tmp_path, "init")
    write(tmp_path, "a.py", "lib.so")
    (tmp_path / ".gitignore").write_text("*.so\n")
    made = project_of(tmp_path, [tmp_path / "lib.so"])
    assert [file.name for file in made.files] == ["a.py", "lib.so"]


def test_hocket_itself_never_travels() -> None:
    with pytest.raises(PlanError, match="has no files that could be sent"):
        project_of(HOCKET)


def test_packages_and_files_that_are_chosen(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "b.py", "p/__init__.py", "p/q/c.py", "plain/d.py")
    named = {
        path: (project.folder, [file.as_posix() for file in project.files])
        for path in ("a.py", "p", "plain")
        for project in [chosen(tmp_path / path)]
    }
    assert named == {
        "a.py": (tmp_path, ["a.py"]),
        "p": (tmp_path, ["p/__init__.py", "p/q/c.py"]),
        "plain": (tmp_path / "plain", ["d.py"]),
    }
    with pytest.raises(PlanError, match=r"none` is to be sent .* no such file or folder"):
        chosen(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(PlanError, match="has no files that could be sent"):
        chosen(tmp_path / "empty")


def sparse(path: Path, nbytes: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(nbytes)


def test_a_folder_that_is_too_large(tmp_path: Path) -> None:
    write(tmp_path, "a.py")
    for number in range(1, 7):
        sparse(tmp_path / "data" / f"{number}.bin", number * 15 << 20)
    with pytest.raises(PlanError) as refused:
        project_of(tmp_path)
    assert re.search(
        r"code in `\S+` would be sent .* it has 7 files of 315\.0 MiB, and at most .* 50\.0 MiB "
        r"are sent\. The largest are data/6\.bin \(90\.0 MiB\), data/5\.bin \(75\.0 MiB\), .*"
        r"\.gitignore.*`ship=\(\"PATH\", \.\.\.\)`, `--ship PATH \.\.\.`",
        str(refused.value),
    )
    assert "1.bin" not in str(refused.value)  # only the largest five
    git(tmp_path, "init")
    (tmp_path / ".gitignore").write_text("data/\n")
    assert files(tmp_path) == ["a.py"]


def test_a_folder_with_too_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a home folder may be, which is not searched to its end."""
    monkeypatch.setattr(project, "MAX_FILES", 10)
    for folder in range(9):
        write(tmp_path, *(f"{folder}/{number}" for number in range(6)))
    with pytest.raises(PlanError, match=r"it has at least 12 files .* at most 10 files"):
        project_of(tmp_path)
