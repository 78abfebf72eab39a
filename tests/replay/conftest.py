from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import compiled
from tests.compiled import STORE
from tests.replay.dpdk import PROGRAMS, Place, missing_for_build


@pytest.fixture(scope="session")
def programs() -> Path:
    """The folder of the programs, kept for as long as sources, DPDK and compiler are the same."""
    if why := missing_for_build():
        pytest.skip(why)
    sources = [p for p in STORE.rglob("*") if p.suffix in (".cpp", ".h", ".txt")]
    dpdk = compiled.run("pkg-config", "--modversion", "libdpdk").stdout
    folder = compiled.kept(("dpdk", dpdk), sources)
    with (compiled.KEPT / "dpdk.lock").open("w") as lock:  # several workers may want them
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            build_programs(folder)
    return folder


def build_programs(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=compiled.KEPT) as build:
        for command in (
            ("cmake", "-S", str(STORE / "dpdk"), "-B", build, "-DCMAKE_BUILD_TYPE=Release"),
            ("cmake", "--build", build, "-j", "2"),
        ):
            done = compiled.run(*command)
            assert done.returncode == 0, done.stdout[-8000:]
        made = Path(build) / "programs"
        made.mkdir()
        for name in PROGRAMS:
            shutil.move(Path(build) / name, made)
        made.rename(folder)  # it gets its name once it is whole


@pytest.fixture
def place(programs: Path) -> Iterator[Place]:
    # Where anybody may go, with copies: the repository may be in a folder of root's alone.
    with tempfile.TemporaryDirectory(prefix="hocket-dpdk-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o777)
        for program in PROGRAMS:
            shutil.copy(programs / program, folder / program)
        place = Place(folder, programs)
        try:
            yield place
        finally:
            place.end()
