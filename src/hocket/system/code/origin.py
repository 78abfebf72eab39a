"""The folders that the user's own modules are imported from."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

INSTALLED = {"site-packages", "dist-packages"}
"""The names of the folders that hold installed packages."""
HOCKET = Path(__file__).absolute().parents[2]
"""The folder of hocket itself."""
_WITH_PYTHON = {
    folder
    for path in (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), HOCKET)
    for folder in (Path(path).absolute(), Path(path).resolve())
}


class Origin(NamedTuple):
    """The place that a module of the user's own was imported from."""

    folder: Path
    """The folder on `sys.path` that holds the module, or the package that the module is in."""
    file: Path
    """The module's file in that folder, or the folder of a package without a file."""


def is_installed(path: Path) -> bool:
    """Return True if a file is part of Python, of an installed package or of hocket.

    An editable install of another package is not: its files lie in a folder of the user's own.
    """
    if INSTALLED & set(path.parts):
        return True
    return any(path.is_relative_to(folder) for folder in _WITH_PYTHON)


def origins(name: str) -> Iterator[Origin]:
    """Yield the origin of an imported module, or nothing if it is installed or has no file.

    A namespace package has several.
    """
    for file in _files(sys.modules.get(name)):
        at = file.parent if file.name.startswith("__init__.") else file
        *above, last = name.split(".")
        folder = at.parents[len(above)]
        # Only a file whose path is the module's name is found by that name on another machine.
        named = folder.joinpath(*above) == at.parent and at.name.partition(".")[0] == last
        if named and file.exists() and not is_installed(file):
            yield Origin(folder, file)


def reachable(names: Iterable[str]) -> set[str]:
    """Return the modules with these names, and those that their own modules refer to.

    The modules that an installed package refers to are left out, because they are installed too.
    """
    seen, todo = set[str](), set(names)
    while todo:
        seen.add(name := todo.pop())
        module = sys.modules.get(name)
        if any(not is_installed(file) for file in _files(module)):
            parts = name.split(".")
            above = {".".join(parts[:count]) for count in range(1, len(parts))}
            todo |= (above | set(_referred_by(module))) - seen
    return seen


def home_of(thing: Any) -> str | None:
    """Return the name of a module, or of the module in which an object was defined."""
    name = thing.__name__ if isinstance(thing, ModuleType) else getattr(thing, "__module__", None)
    return name if isinstance(name, str) else None


def _referred_by(module: ModuleType | None) -> Iterator[str]:
    for thing in list(vars(module).values()):
        if isinstance(thing, ModuleType | type | FunctionType) and (name := home_of(thing)):
            yield name


def _files(module: ModuleType | None) -> list[Path]:
    """Return the file of a module, or the folders of a namespace package."""
    if module is None:
        return []
    file = vars(module).get("__file__")
    paths = [file] if file else vars(module).get("__path__", ())
    return [Path(path).absolute() for path in paths]
