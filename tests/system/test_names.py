"""Objects by name: found in modules and files, and named again; options in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from hocket.envs.classic.catch import Catch
from hocket.system import names
from hocket.system.names import file_modules, find, move_files, path_of, read_words


def test_a_file_that_fails_can_be_mended(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("raise KeyError('here')")
    with pytest.raises(KeyError, match="here"):
        find(f"{file}:Mine")
    file.write_text("Mine = 1")
    assert find(f"{file}:Mine") == 1


def test_a_missing_dependency_is_not_a_missing_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needy.py").write_text("import does_not_exist_anywhere")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="does_not_exist_anywhere"):
        find("needy:Thing")


def test_words() -> None:
    assert read_words("CartPole-v1") == ("CartPole-v1", {})
    assert read_words("a:x=1,y=0.5,z=True,w=text,v=None") == (
        "a", {"x": 1, "y": 0.5, "z": True, "w": "text", "v": None},
    )  # fmt: skip
    assert read_words("file.py:f:x=1") == ("file.py:f", {"x": 1})
    assert read_words("a:x=1,y=file.py:f") == ("a", {"x": 1, "y": "file.py:f"})
    for words, wrong in {"a:x=1,y": "y", "a:y,x=1": "y", "a:=1": "=1", "a:x=": "x="}.items():
        with pytest.raises(ValueError, match=f"`{wrong}` in `{words}` is no option"):
            read_words(words)


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(
        ValueError, match=r"unknown name `PPQ` in `hocket.algorithms`. Did you mean"
    ):
        find("hocket.algorithms:PPQ")
    with pytest.raises(ValueError, match="not of the form"):
        find("PPO")
    with pytest.raises(ValueError, match=r"there is no module `hocket.nowhere`"):
        find("hocket.nowhere:PPO")
    with pytest.raises(ValueError, match=r"there is no file `nowhere.py` here"):
        find("nowhere.py:PPO")


class Mine: ...


def test_a_file_that_another_machine_has_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "_moved", {})
    (tmp_path / "sent.py").write_text("Mine = 7")
    move_files({"../there/mine.py": str(tmp_path / "sent.py")})
    assert find("../there/mine.py:Mine") == 7


def test_a_thing_is_named_where_it_can_be_found(tmp_path: Path) -> None:
    assert find(path_of(Mine)) is Mine
    file = tmp_path / "mine.py"
    file.write_text("class Mine:\n    class Inner: ...\n")
    inner = find(f"{file}:Mine.Inner")
    assert path_of(inner) == f"{file}:Mine.Inner"
    assert [x for x in file_modules() if vars(x)["__file__"] == str(file)]


def test_a_thing_of_ours_is_named_where_users_import_it() -> None:
    """A file that names it stays right when the module moves within its package."""
    assert path_of(Catch) == "hocket.envs:Catch"


def test_a_thing_that_cannot_be_found_again_is_refused() -> None:
    def local() -> None: ...

    with pytest.raises(ValueError, match="Move `local` to the top level of its module"):
        path_of(local)
