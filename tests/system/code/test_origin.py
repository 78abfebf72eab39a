"""A module's folder is the one on `sys.path`, unless Python, a package or hocket is in it."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import hocket.system
from hocket.system.code.origin import Origin, is_installed, origins, reachable


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on `sys.path`, whose modules are forgotten in the end."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_modules_packages_and_parts_of_packages(folder: Path) -> None:
    package = write(folder / "ship_package" / "__init__.py")
    inner = write(folder / "ship_package" / "inner" / "deep.py")
    alone = write(folder / "ship_alone.py")
    for name, file in {
        "ship_package": package,
        "ship_package.inner.deep": inner,
        "ship_alone": alone,
    }.items():
        importlib.import_module(name)
        assert list(origins(name)) == [Origin(folder, file)]


def test_a_package_without_a_file_may_be_in_several_folders(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = folder / "other"
    write(folder / "ship_space" / "one.py")
    write(other / "ship_space" / "two.py")
    monkeypatch.syspath_prepend(other)
    importlib.import_module("ship_space.one")
    assert {origin.folder for origin in origins("ship_space")} == {folder, other}


def test_what_is_installed_has_no_origin(folder: Path) -> None:
    write(folder / "venv" / "lib" / "site-packages" / "ship_installed.py")
    sys.path.insert(0, str(folder / "venv" / "lib" / "site-packages"))  # undone by the fixture
    installed = importlib.import_module("ship_installed")
    modules = (installed, json, np, hocket, hocket.system, sys)
    assert [list(origins(module.__name__)) for module in modules] == [[]] * len(modules)
    assert list(origins("ship_never_imported")) == []
    assert is_installed(Path(json.__file__)) and not is_installed(folder / "mine.py")


def test_a_module_under_another_name_has_no_origin(folder: Path) -> None:
    """Another machine would not find it by that name."""
    file = write(folder / "ship_real.py")
    spec = importlib.util.spec_from_file_location("ship_alias", file)
    assert spec
    sys.modules["ship_alias"] = importlib.util.module_from_spec(spec)
    assert list(origins("ship_alias")) == []


def test_modules_that_own_modules_refer_to(folder: Path) -> None:
    write(folder / "ship_a" / "__init__.py", "from ship_b import function\n")
    write(folder / "ship_a" / "part.py", "import json\n")
    write(folder / "ship_b.py", "from ship_c import Class\ndef function(): pass\n")
    write(folder / "ship_c.py", "class Class: pass\n")
    write(folder / "ship_d.py")
    for name in ("ship_a.part", "ship_d"):
        importlib.import_module(name)
    every = reachable(["ship_a.part"])
    assert {"ship_a.part", "ship_a", "ship_b", "ship_c", "json"} <= every
    assert "ship_d" not in every
    assert "json.decoder" not in every  # what Python's own modules import is left out
