"""Our MPS daemon starts or says why not, answers, and never outlives its owner.

These tests use a program that behaves like NVIDIA's (`stand_in.py`). `gpu_checks.py` uses the real.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from hocket.cluster.nvidia import mps, mps_watch
from hocket.cluster.nvidia.mps import Daemon
from hocket.errors import PlanError
from tests.cluster.stand_in import install
from tests.faults import is_gone, wait_until

SOON = 20.0


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with MPS programs on PATH. Files in it tell them what to do wrong."""
    folder = install(tmp_path)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with TemporaryDirectory(dir=mps.SHORT) as folder:
        monkeypatch.setattr(mps, "SHORT", Path(folder))
        yield
        assert list(Path(folder).iterdir()) == []


def test_it_starts_answers_and_ends(programs: Path) -> None:
    assert mps.missing() == "" and mps.find_program(mps.CONTROL) == str(programs / mps.CONTROL)
    daemon = Daemon(["GPU-a", "GPU-b"])
    pids = mps_watch.processes(daemon.folder)
    assert len(pids) == 2 and len(daemon.servers()) == 1 and daemon.clients() == []
    assert "Starting control daemon for GPU-a,GPU-b" in daemon.log()
    # Names of sockets are short, and only this user can read the folder.
    assert len(str(daemon.folder / "pipe" / "control")) < 60
    assert daemon.folder.stat().st_mode & 0o077 == 0

    client = subprocess.Popen(["sleep", "60"], env={**os.environ, **daemon.env})
    assert daemon.clients() == [client.pid]
    client.kill()
    client.wait()
    for _ in range(2):
        daemon.close()
        assert not daemon.folder.exists() and all(map(is_gone, pids))


def test_whoever_watches_it_survives_sigterm(programs: Path) -> None:
    """A scheduler sends SIGTERM to all processes of a job, and the watcher must end last."""
    daemon = Daemon(["GPU-a"])
    watcher = daemon._watcher.pid

    def ignored() -> bool:
        lines = Path(f"/proc/{watcher}/status").read_text().splitlines()
        mask = next(line.split()[1] for line in lines if line.startswith("SigIgn"))
        return bool(int(mask, 16) >> (signal.SIGTERM - 1) & 1)

    wait_until(ignored, SOON)
    os.kill(watcher, signal.SIGTERM)
    daemon.close()
    assert daemon._watcher.returncode == 0


def test_one_that_refuses_is_told_with_its_log(programs: Path) -> None:
    (programs / "refuse").touch()
    with pytest.raises(PlanError) as raised:
        Daemon(["GPU-a"])
    said = str(raised.value)
    assert said.startswith(f"NVIDIA MPS does not start: `{programs / mps.CONTROL} -d` should exit")
    assert "Failed to start: the stand-in refuses" in said  # from its log
    assert "An instance of this daemon is already running" in said  # from its output
    assert "Use `cut=shared`" in said
    assert "Failed to start" in mps.refuses("GPU-refused")


def test_a_server_that_does_not_start_is_told_with_the_log(programs: Path) -> None:
    (programs / "no-server").touch()
    with pytest.raises(
        PlanError, match=r"its server does not start. Its log says\n(.|\n)*status 1"
    ):
        Daemon(["GPU-a"])


def test_one_that_hangs_is_ended_by_force(programs: Path) -> None:
    (programs / "hang").touch()
    daemon = Daemon(["GPU-a"])
    pids = mps_watch.processes(daemon.folder)
    begin = time.monotonic()
    daemon.close()
    assert time.monotonic() - begin < mps_watch.QUIT_SECONDS + SOON
    assert len(pids) == 2 and all(map(is_gone, pids)) and not daemon.folder.exists()


def test_somebody_elses_is_left_alone(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the environment of this process names it."""
    theirs = tmp_path / "t"
    for name in ("pipe", "log"):
        (theirs / name).mkdir(parents=True)
    for name, value in mps_watch.where(theirs).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "10")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    subprocess.run([str(programs / mps.CONTROL), "-d"], check=True)
    (pid,) = mps_watch.processes(theirs)

    daemon = Daemon(["GPU-a"])
    ours = mps_watch.processes(daemon.folder)
    assert len(ours) == 2 and pid not in ours and daemon.env["CUDA_MPS_PIPE_DIRECTORY"] not in (
        os.environ["CUDA_MPS_PIPE_DIRECTORY"], "",
    )  # fmt: skip
    for process in ours:
        environ = Path(f"/proc/{process}/environ").read_bytes()
        assert b"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in environ
        assert b"CUDA_VISIBLE_DEVICES=GPU-a\0" in environ
    daemon.close()
    assert not is_gone(pid) and mps_watch.ask(mps.CONTROL, theirs, "get_server_list") == ""
    mps_watch.end_daemon(mps.CONTROL, theirs)
    assert is_gone(pid)


OWNER = """
import json, os, subprocess, sys, time
from hocket.cluster.nvidia import mps, mps_watch
daemon = mps.Daemon(["GPU-a"])
started = subprocess.Popen(["sleep", "100"], stdout=subprocess.DEVNULL)
forked = os.fork()  # a fork holds the same files
if not forked:
    os.close(1)
    time.sleep(100)
print(json.dumps([str(daemon.folder), mps_watch.processes(daemon.folder), started.pid, forked]))
sys.stdout.flush()
time.sleep(100)
"""


def test_it_does_not_outlive_an_owner_who_is_killed(programs: Path) -> None:
    """It does not wait for processes that the owner has started or forked, either."""
    command = [sys.executable, "-c", OWNER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        folder, pids, *others = json.loads(owner.stdout.readline())
        assert len(pids) == 2 and not any(map(is_gone, [*pids, *others]))
        owner.kill()
    wait_until(lambda: all(map(is_gone, pids)) and not Path(folder).exists(), SOON)
    assert not any(map(is_gone, others))
    for pid in others:
        os.kill(pid, signal.SIGKILL)


def test_the_watcher_imports_nothing_else() -> None:
    """It starts with every run, and must not cost a second and a gigabyte."""
    done = subprocess.run(
        [sys.executable, "-I", "-X", "importtime", mps_watch.__file__, "nothing", "/nonexistent"],
        stdin=subprocess.DEVNULL, text=True, capture_output=True, check=True,
    )  # fmt: skip
    assert "shutil" in done.stderr and "jax" not in done.stderr and "numpy" not in done.stderr
