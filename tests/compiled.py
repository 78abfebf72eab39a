"""Compiles C++ tests, again only if their sources, the compiler or its flags have changed."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CHECKS = Path(__file__).parent / "replay" / "native"
"""The folder of `checks.h`, with which C++ tests are written."""
STORE = Path(__file__).parents[1] / "src" / "hocket" / "replay" / "store" / "native"
FLAGS = ("-std=c++17", "-g", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off", "-pthread")
# Without `-fno-inline`, most of the compilation time goes into inlined checks.
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-inline")
# The sanitizer does not model fences and warns of them. They only decide who is woken.
THREADS = ("-fsanitize=thread", "-Wno-tsan")
KEPT = Path(os.environ["JAX_COMPILATION_CACHE_DIR"]).with_name("tests-native")


@functools.cache
def compiler() -> str:
    names = [name for name in (os.environ.get("CXX"), "c++", "g++", "clang++") if name]
    for name in names:
        if path := shutil.which(name):
            return path
    raise AssertionError(f"there is no C++ compiler: none of {', '.join(names)} was found")


@functools.cache
def version() -> str:
    return run(compiler(), "--version").stdout


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )


def program(sources: Sequence[Path], *flags: str, folder: Path = STORE) -> Path:
    """Compile a program, each source separately, on all cores. `folder` has the headers."""
    folders = (folder, CHECKS)
    headers = sorted(x for at in folders for x in at.iterdir() if x.suffix in (".h", ".cu"))
    include = [f"-I{at}" for at in folders]

    def compiled(source: Path) -> Path:
        return made((*FLAGS, *flags, "-c"), [source, *headers], (*include, str(source)))

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        objects = list(threads.map(compiled, sources))
    return made((*FLAGS, *flags), objects, tuple(map(str, objects)))


def made(flags: tuple[str, ...], parts: Sequence[Path], arguments: tuple[str, ...]) -> Path:
    """Compile or link some files; the output is cached under a hash of all that it depends on."""
    path = kept(flags, parts)
    if not path.exists():
        # It gets its name only when it is complete, because another worker may need the same file.
        with tempfile.TemporaryDirectory(dir=KEPT) as folder:
            new = Path(folder) / "new"
            done = run(compiler(), *flags, *arguments, "-o", str(new))
            assert done.returncode == 0, done.stdout
            new.replace(path)
    return path


def kept(flags: tuple[str, ...], parts: Sequence[Path]) -> Path:
    """Where the result of compiling these files is kept from one run to the next."""
    KEPT.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(repr((version(), flags)).encode())
    for part in sorted(parts):
        digest.update(part.name.encode() + b"\0" + part.read_bytes())
    return KEPT / digest.hexdigest()


@functools.cache
def has_thread_sanitizer() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        source, empty = Path(folder) / "empty.cpp", Path(folder) / "empty"
        source.write_text("int main() {}\n")
        built = run(compiler(), "-fsanitize=thread", str(source), "-o", str(empty))
        return built.returncode == 0 and run(str(empty)).returncode == 0
