"""Machines of one run must have the same versions of what decides numbers."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

from hocket.system.nodes.versions import PACKAGE, differences, digest, versions


def test_this_machine_is_equal_to_itself() -> None:
    mine = versions()
    assert mine["python"] == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert mine["jax"] == metadata.version("jax")
    assert mine["hocket"] == digest(PACKAGE)
    assert (PACKAGE / "system/steward.py").is_file()
    assert differences(mine, mine) == []


def test_each_difference_has_a_cure() -> None:
    mine = {**versions(), "libhocket.so": "built", "envpool": "1.2.5", "gymnasium": "1.3"}
    for name, theirs, said in (
        (
            "python",
            "2.7",
            f"it has Python 2.7, and this machine has Python {mine['python']}: start",
        ),
        ("hocket", "0123", "it has hocket with the digest 0123, and this machine has hocket with"),
        ("jax", "0.1.0", f"run `pip install jax=={mine['jax']}` there."),
        ("jaxlib", "", f"it has no jaxlib, and this machine has jaxlib {mine['jaxlib']}"),
        ("envpool", "1.0", "it has envpool 1.0, and this machine has envpool 1.2.5: run `pip"),
        ("libhocket.so", "", "its hocket has no libhocket.so: install hocket there with `pip"),
    ):
        (difference,) = differences(mine, {**mine, name: theirs})
        assert said in difference


def test_extras_need_not_be_everywhere() -> None:
    mine = {**versions(), "libhocket.so": "built", "mujoco": "3.1", "envpool": ""}
    assert differences(mine, {**mine, "mujoco": "", "envpool": "1.2.5"}) == []


def test_the_digest_is_that_of_names_and_contents(tmp_path: Path) -> None:
    def written(name: str, text: str) -> str:
        folder = tmp_path / f"{name}-{len(list(tmp_path.iterdir()))}"
        (folder / "inner").mkdir(parents=True)
        (folder / "inner" / name).write_text(text)
        return digest(folder)

    first = written("a.py", "x = 1\n")
    assert written("a.py", "x = 1\n") == first
    assert written("a.py", "x = 2\n") != first
    assert written("b.py", "x = 1\n") != first
    assert written("a.txt", "x = 1\n") == written("b.txt", "x = 2\n")
