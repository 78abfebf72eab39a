"""The C++ tests of the replay service: nonsense and threads, each with its sanitizers."""

from __future__ import annotations

import os

import pytest
from tests.compiled import (
    CHECKS,
    SANITIZERS,
    STORE,
    THREADS,
    compiler,
    has_thread_sanitizer,
    program,
    run,
)

# Without module.cpp, which needs the headers of Python.
PARTS = sorted(x for x in STORE.glob("*.cpp") if x.name != "module.cpp")
SOURCES = (CHECKS / "test_service.cpp", *PARTS)
FUZZ_SECONDS = float(os.environ.get("HOCKET_FUZZ_SECONDS", "12"))


@pytest.mark.timeout(FUZZ_SECONDS + 300)
@pytest.mark.parametrize("flags", [SANITIZERS, THREADS], ids=["memory", "threads"])
def test_the_service_passes_its_own_tests(
    flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    if flags == THREADS and not has_thread_sanitizer():
        pytest.skip(f"{compiler()} has no thread sanitizer here")
    # Compiling takes longer than running the tests.
    built = program(SOURCES, "-O0", *flags)
    # This many of each of three kinds.
    monkeypatch.setenv("HOCKET_FUZZ_SECONDS", str(FUZZ_SECONDS / 10))
    ran = run(str(built), "threads" if flags == THREADS else "")
    assert ran.returncode == 0, ran.stdout
