"""`driver.c`, compiled, shows a process an NVIDIA driver and MPS on a machine without them."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from tests.cluster.stand_in import install

ROOT = Path(__file__).parents[2]
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
GPUS = tuple(f"GPU-{i}0112233-4455-6677-8899-aabbccddeeff" for i in range(2))
MIGS = tuple(f"MIG-{i}0112233-4455-6677-8899-aabbccddeeff" for i in "ab")


def on_gpus(code: str, machine: str = "", **environment: str) -> Any:
    """Run `code` in a process that sees a driver with two GPUs, and return the JSON it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], env=machine_with_gpus(machine) | environment, cwd=ROOT,
        text=True, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def machine_with_gpus(machine: str = "") -> dict[str, str]:
    """The environment of a process that sees these GPUs and MPS."""
    kept = {name: x for name, x in os.environ.items() if not name.startswith(("CUDA_", "XLA_"))}
    folder = _compiled()
    return {
        **kept,
        "LD_LIBRARY_PATH": str(folder),
        "PATH": f"{folder}{os.pathsep}{kept['PATH']}",
        "STAND_IN": machine,
    }


@cache
def _compiled() -> Path:
    folder = install(Path(mkdtemp(prefix="hocket-driver-")))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    assert COMPILER, "there is no C compiler: cc, gcc or clang"
    flags = ("-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared")
    library = folder / "libcuda.so.1"
    source = str(Path(__file__).with_name("driver.c"))
    subprocess.run([COMPILER, *flags, source, "-o", str(library)], check=True)
    shutil.copy(library, folder / "libnvidia-ml.so.1")
    return folder
