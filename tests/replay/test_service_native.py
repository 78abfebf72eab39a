"""The C++ tests of the replay service: nonsense under sanitizers, and threads under another."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.replay.test_native import FLAGS, HERE, SANITIZERS, STORE, compiler, run

# module.cpp needs the headers of Python.
SOURCES = (HERE / "test_service.cpp", *(x for x in STORE.glob("*.cpp") if x.name != "module.cpp"))
# It knows nothing of fences, which only decide who is woken.
THREADS = ("-fsanitize=thread", "-Wno-tsan")
FUZZ_SECONDS = float(os.environ.get("HOCKET_FUZZ_SECONDS", "30"))


def build(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Each file alone, on all cores."""
    # Compiling takes longer than what is compiled runs.
    command = (compiler(), *FLAGS, "-O0", *flags, "-pthread", f"-I{STORE}")

    def compile_one(source: Path) -> subprocess.CompletedProcess[str]:
        return run(*command, "-c", str(source), "-o", str(folder / f"{source.stem}.o"))

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for built in threads.map(compile_one, SOURCES):
            if built.returncode:
                return built
    return run(*command, *map(str, folder.glob("*.o")), "-o", str(folder / "test_service"))


@pytest.mark.timeout(FUZZ_SECONDS + 300)
@pytest.mark.parametrize("flags", [SANITIZERS, THREADS], ids=["memory", "threads"])
def test_the_service_passes_its_own_tests(
    flags: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if flags == THREADS and not has_thread_sanitizer(tmp_path):
        pytest.skip(f"{compiler()} has no thread sanitizer here")
    built = build(tmp_path, *flags)
    assert built.returncode == 0, built.stdout
    # Of each of three kinds.
    monkeypatch.setenv("HOCKET_FUZZ_SECONDS", str(FUZZ_SECONDS / 10))
    ran = run(str(tmp_path / "test_service"), "threads" if flags == THREADS else "")
    assert ran.returncode == 0, ran.stdout


def has_thread_sanitizer(folder: Path) -> bool:
    source = folder / "empty.cpp"
    source.write_text("int main() {}\n")
    built = run(compiler(), "-fsanitize=thread", str(source), "-o", str(folder / "empty"))
    return built.returncode == 0 and run(str(folder / "empty")).returncode == 0
