"""The C++ tests of messages in packets, compiled and run plain and with sanitizers."""

from __future__ import annotations

import os

import pytest
from tests.compiled import CHECKS, SANITIZERS, STORE, program, run

# The sources of a program with a desk and packets, without servers of streams and Python.
PARTS = ("table", "frames", "snapshot", "shared", "desk", "datagram", "datagram_server")
SOURCES = tuple(STORE / f"{part}.cpp" for part in (*PARTS, "datagram_client", "udp"))
PROGRAMS = ("test_datagram", "fuzz_datagram", "test_udp")
FUZZ_SECONDS = float(os.environ.get("HOCKET_FUZZ_SECONDS", "2"))


@pytest.mark.timeout(FUZZ_SECONDS + 300)
@pytest.mark.parametrize("flags", [(), SANITIZERS], ids=["plain", "sanitizers"])
def test_packets_pass_their_own_tests(flags: tuple[str, ...]) -> None:
    for name in PROGRAMS:
        ran = run(str(program((CHECKS / f"{name}.cpp", *SOURCES), "-O1", *flags)))
        assert ran.returncode == 0, f"{name}:\n{ran.stdout}"
