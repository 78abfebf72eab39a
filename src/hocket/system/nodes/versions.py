"""The versions that all machines of a run must have in common, and what to do if they differ.

`versions()` describes this machine, and `differences(mine, theirs)` compares two descriptions.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

PACKAGE = Path(__file__).parents[2]
"""The folder of hocket."""
ALWAYS = ("jax", "jaxlib")
"""The packages that every machine has, in the same version."""
EXTRAS = ("gymnasium", "envpool", "mujoco")
"""The packages that a machine may lack. Machines that have one have the same version."""
_PYTHON, _HOCKET, _LIBRARY = "python", "hocket", "libhocket.so"


def versions() -> dict[str, str]:
    """Describe this machine: the version of each package, or "" for one that is missing."""
    return {
        _PYTHON: f"{sys.version_info.major}.{sys.version_info.minor}",
        _HOCKET: digest(PACKAGE),
        _LIBRARY: "built" if (PACKAGE / "system" / "native" / _LIBRARY).is_file() else "",
        **{name: _installed(name) for name in (*ALWAYS, *EXTRAS)},
    }


def differences(mine: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Return what must change on another machine before it can take part in a run, a line each."""
    names = [name for name in EXTRAS if mine.get(name) and theirs.get(name)]
    wrong = [
        f"it has {_named(name, theirs)}, and this machine has {_named(name, mine)}: "
        f"{_cure(name, mine)}"
        for name in (_PYTHON, _HOCKET, *ALWAYS, *names)
        if mine.get(name, "") != theirs.get(name, "")
    ]
    if not theirs.get(_LIBRARY):
        wrong.append(
            f"its hocket has no {_LIBRARY}: install hocket there with `pip install`, which builds "
            f"that library, instead of copying the Python files."
        )
    return wrong


@functools.cache
def digest(package: Path) -> str:
    """Return a digest of all Python files of a package, and of their names."""
    total = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{path.relative_to(package).as_posix()} {content}\n".encode())
    return total.hexdigest()[:12]


def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _named(name: str, versions: Mapping[str, str]) -> str:
    title = {_PYTHON: "Python", _HOCKET: "hocket with the digest"}.get(name, name)
    return f"{title} {versions[name]}" if versions.get(name) else f"no {name}"


def _cure(name: str, mine: Mapping[str, str]) -> str:
    """Return what to do on the other machine about one version."""
    if name == _PYTHON:
        return f"start another one there, of version {mine[name]}."
    if name == _HOCKET:
        return "install the same files of hocket on both."
    return f"run `pip install {name}=={mine[name]}` there."
