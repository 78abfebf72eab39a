from __future__ import annotations

import fcntl
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.replay.dpdk import BUILD, LOAD, NODE, RELAY, SOURCE, Place, missing_for_build


@pytest.fixture(scope="session")
def programs() -> Path:
    """The folder of the programs, compiled when their sources changed."""
    if why := missing_for_build():
        pytest.skip(why)
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "lock").open("w") as lock:  # several workers have one folder
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in (
            ["cmake", "-S", str(SOURCE), "-B", str(BUILD), "-DCMAKE_BUILD_TYPE=Release"],
            ["cmake", "--build", str(BUILD), "-j", "2"],
        ):
            built = subprocess.run(command, capture_output=True, text=True, check=False)
            assert built.returncode == 0, built.stdout[-4000:] + built.stderr[-4000:]
    return BUILD


@pytest.fixture
def place(programs: Path) -> Iterator[Place]:
    # Where anybody may go, with copies: the repository may be in a folder of root's alone.
    with tempfile.TemporaryDirectory(prefix="hocket-dpdk-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o777)
        for program in (NODE, RELAY, LOAD):
            shutil.copy(programs / program, folder / program)
        found = Place(folder, programs)
        try:
            yield found
        finally:
            found.end()
