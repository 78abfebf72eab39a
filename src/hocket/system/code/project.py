"""A folder of the user's own code: which of its files travel, and how large they may be."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from hocket.errors import PlanError
from hocket.system.code.origin import HOCKET
from hocket.system.text import bytes_text

MAX_NBYTES = 50 << 20
"""The most bytes that the files of a folder may have together."""
MAX_FILES = 10_000
"""The most files that may travel of a folder."""
RUNS = "runs"
"""The folder in which runs are kept by default, which does not travel."""
LARGEST = 5
"""How many files an error names of a folder that is too large."""
_ENVIRONMENTS = ("pyvenv.cfg", "conda-meta")


class Project(NamedTuple):
    """A folder for `sys.path`, and the files of it that travel."""

    folder: Path
    files: tuple[Path, ...]
    """Relative to the folder, in order."""
    nbytes: int

    def __str__(self) -> str:
        count = "1 file" if len(self.files) == 1 else f"{len(self.files):,} files"
        return f"{count} of {self.folder} ({bytes_text(self.nbytes)})"


def as_paths(ship: str | Path | Iterable[str | Path]) -> tuple[str, ...]:
    """Return the paths that a user gives as one or as several."""
    return tuple(map(str, (ship,) if isinstance(ship, str | Path) else ship))


def project_of(folder: Path, needed: Iterable[Path] = ()) -> Project:
    """Return a folder with all files that travel, or refuse one that is too large.

    These are the files that git does not ignore. If git does not know the folder, all files travel.
    Hidden files, virtual environments, `__pycache__` and `runs` never do. The files in `needed`
    always do.
    """
    listed = set(_git_files(folder) or _all_files(folder))
    return _measured(folder, listed | {path.relative_to(folder) for path in needed})


def chosen(path: Path) -> Project:
    """Return the project that the user names by a path.

    That is a folder for `sys.path`. A package or a single file travels alone, without the other
    files beside it.
    """
    path = path.expanduser().resolve()
    if path.is_file():
        return _measured(path.parent, {Path(path.name)})
    if not path.is_dir():
        raise PlanError(
            f"`{path}` is to be sent to the nodes, but there is no such file or folder."
        )
    if (path / "__init__.py").is_file():
        inside = project_of(path)
        return _measured(path.parent, {path.name / file for file in inside.files})
    return project_of(path)


def _measured(folder: Path, files: Iterable[Path]) -> Project:
    root, ours = folder.resolve(), HOCKET.resolve()
    kept = (file for file in files if ours not in (root / file).parents)
    sizes = {file: (folder / file).stat().st_size for file in kept if (folder / file).is_file()}
    project = Project(folder, tuple(sorted(sizes)), sum(sizes.values()))
    if project.nbytes > MAX_NBYTES or len(sizes) > MAX_FILES:
        raise PlanError(_too_large(project, sizes))
    if not sizes:
        raise PlanError(f"`{folder}` has no files that could be sent to the nodes.")
    return project


def _too_large(project: Project, sizes: dict[Path, int]) -> str:
    largest = sorted(sizes, key=lambda file: (-sizes[file], file))[:LARGEST]
    named = ", ".join(f"{file} ({bytes_text(sizes[file])})" for file in largest)
    more = "at least " if len(sizes) > MAX_FILES else ""
    return (
        f"the code in `{project.folder}` would be sent to the nodes of the cluster, but it has "
        f"{more}{len(sizes):,} files of {bytes_text(project.nbytes)}, and at most {MAX_FILES:,} "
        f"files of {bytes_text(MAX_NBYTES)} are sent. The largest are {named}. List what nodes "
        f"need not have in the `.gitignore` of a git repository, move it elsewhere, or name the "
        f'packages and files to send: `ship=("PATH", ...)`, `--ship PATH ...`.'
    )


def _git_files(folder: Path) -> list[Path]:
    """Return the files that git does not ignore; none if git does not know the folder."""
    command = ("git", "-C", str(folder), "ls-files", "-coz", "--exclude-standard")
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except OSError:  # there is no git
        return []
    paths = [Path(os.fsdecode(name)) for name in done.stdout.split(b"\0") if name]
    above = {parent for path in paths for parent in path.parents if parent.name}
    environments = {path for path in above if _is_environment(folder / path)}
    files: list[Path] = []
    for path in paths:
        if any(map(_stays, path.parts)) or environments & {*path.parents}:
            continue
        if (folder / path).is_dir():  # another repository: git names only its folder
            if not (folder / path).is_symlink():
                files += [path / file for file in _git_files(folder / path)]
        else:
            files.append(path)
    return files


def _all_files(folder: Path) -> Iterator[Path]:
    """Yield all files that may travel, but not many more than the most that are allowed."""
    count = 0
    for at, folders, names in os.walk(folder):
        kept = [x for x in folders if not _stays(x) and not _is_environment(Path(at, x))]
        folders[:] = sorted(kept)
        files = [Path(at, name) for name in names if not _stays(name)]
        yield from (file.relative_to(folder) for file in files)
        count += len(files)
        if count > MAX_FILES:
            return


def _stays(name: str) -> bool:
    """Return True for the name of a file or folder that never travels."""
    return name.startswith(".") or name in ("__pycache__", RUNS)


def _is_environment(folder: Path) -> bool:
    return any((folder / name).exists() for name in _ENVIRONMENTS)
