"""The compiled part of streams, under the sanitizers of memory and of threads."""

from __future__ import annotations

from pathlib import Path

import pytest

from hocket.system.native import KERNEL
from tests.compiled import SANITIZERS, THREADS, has_thread_sanitizer, program, run

NATIVE = KERNEL.parent
SOURCES = [Path(__file__).parent / "native" / "test_tcp.cpp", NATIVE / "tcp.cpp"]


@pytest.mark.parametrize("flags", [SANITIZERS, THREADS], ids=["memory", "threads"])
def test_streams_in_every_order(flags: tuple[str, ...]) -> None:
    if flags == THREADS and not has_thread_sanitizer():
        pytest.skip("this compiler has no thread sanitizer")
    ran = run(str(program(SOURCES, "-O1", *flags, folder=NATIVE)))
    assert ran.returncode == 0, ran.stdout
