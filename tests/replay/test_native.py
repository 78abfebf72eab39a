"""The C++ tests of the replay store, compiled and run plain and with sanitizers."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.compiled import CHECKS, SANITIZERS, STORE, program, run

PARTS = ("table", "frames", "snapshot", "store")
SOURCES = (CHECKS / "test_table.cpp", *(STORE / f"{part}.cpp" for part in PARTS))


@pytest.mark.parametrize("flags", [(), SANITIZERS], ids=["plain", "sanitizers"])
def test_the_store_passes_its_own_tests(
    flags: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    ran = run(str(program(SOURCES, "-O1", *flags)))
    assert ran.returncode == 0, ran.stdout
