"""The C++ tests of messages in packets: compiled here and run, plain and under sanitizers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.replay.test_native import FLAGS, HERE, SANITIZERS, STORE, compiler, run

# What a program with a desk and packets is made of: no server of streams, no Python.
PARTS = ("table", "frames", "snapshot", "shared", "desk", "datagram", "datagram_server")
SOURCES = tuple(STORE / f"{part}.cpp" for part in (*PARTS, "datagram_client", "udp"))
PROGRAMS = ("test_datagram", "fuzz_datagram", "test_udp")
FUZZ_SECONDS = float(os.environ.get("HOCKET_FUZZ_SECONDS", "2"))


@pytest.mark.timeout(FUZZ_SECONDS + 300)
@pytest.mark.parametrize("flags", [(), SANITIZERS], ids=["plain", "sanitizers"])
def test_packets_pass_their_own_tests(flags: tuple[str, ...], tmp_path: Path) -> None:
    # The sources are compiled once for all programs: they take longest.
    objects = [tmp_path / f"{source.stem}.o" for source in SOURCES]
    for source, made in zip(SOURCES, objects, strict=True):
        built = run(compiler(), *FLAGS, *flags, "-c", str(source), "-o", str(made))
        assert built.returncode == 0, built.stdout
    for name in PROGRAMS:
        program = tmp_path / name
        parts = [f"-I{STORE}", str(HERE / f"{name}.cpp"), *map(str, objects), "-pthread"]
        built = run(compiler(), *FLAGS, *flags, *parts, "-o", str(program))
        assert built.returncode == 0, built.stdout
        ran = run(str(program))
        assert ran.returncode == 0, f"{name}:\n{ran.stdout}"
