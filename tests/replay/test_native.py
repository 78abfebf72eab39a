"""The C++ tests of the replay store: compiled here and run, plain and under sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "native"
STORE = Path(__file__).parents[2] / "src" / "hocket" / "replay" / "store" / "native"
PARTS = ("table", "frames", "snapshot", "store")
SOURCES = (HERE / "test_table.cpp", *(STORE / f"{part}.cpp" for part in PARTS))
FLAGS = ("-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off")
# Inlined checks are most of what there is to compile.
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-inline")


def compiler() -> str:
    names = [name for name in (os.environ.get("CXX"), "c++", "g++", "clang++") if name]
    for name in names:
        if path := shutil.which(name):
            return path
    raise AssertionError(f"there is no C++ compiler: none of {', '.join(names)} was found")


def build(program: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [compiler(), *FLAGS, *flags, f"-I{STORE}", *map(str, SOURCES), "-o", str(program)]
    return run(*command)


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )


@pytest.mark.parametrize("flags", [(), SANITIZERS], ids=["plain", "sanitizers"])
def test_the_store_passes_its_own_tests(
    flags: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "test_table"
    built = build(program, *flags)
    assert built.returncode == 0, built.stdout
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    ran = run(str(program))
    assert ran.returncode == 0, ran.stdout
