"""Ways by name: of a folder's files, of installed packages, and of a module or file."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Protocol

import pytest

from hocket.system import registry
from hocket.system.registry import Registry, lacking


class Sorter(Protocol):
    """The interface of the ways that these tests register."""

    name: str

    def sort(self, items: list[int]) -> list[int]: ...


OURS = {
    "quick": "class Quick:\n    name = 'quick'\n    def sort(self, items): return sorted(items)\n"
    "WAY = Quick()\n",
    "slow": "WAY = None\n",
}
THEIRS = {"stable": "json:loads", "quick": "json:dumps", "gone": "nowhere:thing"}


@pytest.fixture
def sorters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """A registry of two files and three entry points, one of a name that a file has."""
    package = tmp_path / "sorters_of_a_test"
    package.mkdir()
    for name, text in {"__init__": "", **OURS}.items():
        (package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    points = [EntryPoint(name, value, "sorters") for name, value in THEIRS.items()]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    return Registry("sorter", package.name, "WAY", group="sorters")


def test_names_are_our_files_then_what_is_installed(sorters: Registry) -> None:
    assert sorters.names == ("quick", "slow", "stable", "gone")
    assert list(sorters.built_in) == ["quick", "slow"]


def test_a_file_wins_over_a_package(sorters: Registry) -> None:
    assert sorters["quick"].name == "quick"
    assert sorters["stable"].__name__ == "loads"


def test_a_way_of_a_module_is_named_with_it(sorters: Registry) -> None:
    assert sorters["json:dumps"].__name__ == "dumps"
    with pytest.raises(ValueError, match="`a:b:c=1` has options, and a sorter takes none"):
        sorters["a:b:c=1"]


def test_a_name_that_nobody_has_is_refused(sorters: Registry) -> None:
    with pytest.raises(ValueError, match=r"unknown sorter `quik`.*`quick`\?.*own as `module:NAME`"):
        sorters["quik"]


def test_a_package_that_cannot_be_imported_is_named(sorters: Registry) -> None:
    with pytest.raises(ImportError, match=r"the sorter `gone` of the package .* uninstall"):
        sorters["gone"]


def test_a_way_is_made_with_its_options(sorters: Registry, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "class Mine:\n"
        "    def __init__(self, order): self.name = order\n"
        "    def sort(self, items): return items\n"
    )
    path = f"{file}:Mine"
    assert sorters.make(path, Sorter, order="up").name == "up"
    with pytest.raises(ValueError, match="cannot be made: missing a required argument: 'order'"):
        sorters.make(path, Sorter)


def test_a_way_that_is_made_already_takes_no_options(sorters: Registry) -> None:
    assert sorters.make("quick", Sorter).sort([2, 1]) == [1, 2]
    with pytest.raises(ValueError, match="`quick` is not a class, so it takes no options"):
        sorters.make("quick", Sorter, order="up")


def test_a_way_without_all_members_is_none(sorters: Registry) -> None:
    with pytest.raises(ValueError, match=r"`slow` is no sorter: it has no `name`, `sort`\."):
        sorters.make("slow", Sorter)
    assert lacking(sorters["quick"], Sorter) == []
