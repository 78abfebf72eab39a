"""A private control daemon of NVIDIA MPS: starting it, querying it, and ending it in any case.

Processes that are clients of such a daemon run on a GPU at the same time; others take turns. The
daemon's pipes and logs are in a private folder, apart from those of other users' daemons.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from hocket.cluster.nvidia import mps_watch
from hocket.errors import PlanError

CONTROL, SERVER = "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"
FOLDERS = ("/usr/bin", "/usr/local/nvidia/bin", "/usr/local/cuda/bin", "/opt/nvidia/bin")
"""The folders where drivers put the MPS programs, searched if the programs are not on PATH."""
START_SECONDS = 15.0
SETTLE_SECONDS = 3.0
"""Seconds to wait for a server even if the log has errors, since it may start in spite of them."""
SHORT = Path("/tmp")
"""A short path for the daemon's folder, since the path of a socket has at most 107 characters."""
TROUBLE = re.compile(r"fail|error|unable|denied|exited with status [1-9]", re.IGNORECASE)


def find_program(name: str) -> str | None:
    """Return the path of an NVIDIA program; None if it is missing."""
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(FOLDERS))


def missing() -> str:
    """Return the reason why this machine has no MPS; "" if it has MPS."""
    if sys.platform != "linux":
        return "NVIDIA MPS needs Linux."
    absent = [name for name in (CONTROL, SERVER) if find_program(name) is None]
    if absent:
        return (
            f"`{'` and `'.join(absent)}` {'is' if len(absent) == 1 else 'are'} neither on PATH nor "
            f"in {', '.join(FOLDERS)}. They come with the NVIDIA driver (in a container, with its "
            f"`utility` and `compute` parts)."
        )
    return ""


@cache
def refuses(uuid: str) -> str:
    """Start and end MPS on a GPU, once per process, and return why that fails; "" if it works."""
    try:
        Daemon([uuid]).close()
    except PlanError as error:
        return str(error)
    return ""


class Daemon:
    """An MPS daemon for some GPUs. It runs until it is closed or this process is gone."""

    def __init__(self, uuids: Sequence[str]) -> None:
        self._control = find_program(CONTROL) or CONTROL
        short = SHORT if os.access(SHORT, os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix="hocket-mps-", dir=short))
        for name in ("pipe", "log"):
            (self.folder / name).mkdir(mode=0o700)
        self._alive: int | None = None
        self._watcher = self._watch()
        try:
            self._start(uuids)
        except BaseException:
            self.close()
            raise

    @property
    def env(self) -> dict[str, str]:
        """The environment variables that make a process a client of this daemon."""
        return mps_watch.where(self.folder)

    def servers(self) -> list[int]:
        """Return the ids of the server processes, which use the GPUs on behalf of the clients."""
        return _numbers(self._ask("get_server_list"))

    def clients(self) -> list[int]:
        """Return the process ids of the clients, as the daemon sees them."""
        return [pid for s in self.servers() for pid in _numbers(self._ask(f"get_client_list {s}"))]

    def log(self) -> str:
        """Return the last lines of the logs of the daemon and its servers."""
        paths = sorted((self.folder / "log").glob("*"))
        lines = [line for path in paths for line in _text(path).splitlines()]
        return "\n".join(lines[-12:]) or "(its log is empty)"

    def close(self) -> None:
        """End the daemon, and remove its folder. A second call does nothing."""
        if self._alive is not None:
            with contextlib.suppress(OSError):  # the watcher has ended already
                # Send a byte: closing does not reach the watcher if a fork holds the pipe open.
                os.write(self._alive, b".")
            os.close(self._alive)
            self._alive = None
        try:
            self._watcher.wait(2 * mps_watch.QUIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._watcher.kill()
            self._watcher.wait()
        mps_watch.end_daemon(self._control, self.folder)  # does nothing unless the watcher failed

    def _watch(self) -> subprocess.Popen[bytes]:
        """Start the watcher, before the daemon. It ends the daemon if this process is killed."""
        reading, self._alive = os.pipe()  # programs do not inherit the writing end, but forks do
        try:
            return subprocess.Popen(
                [sys.executable, "-I", mps_watch.__file__, self._control, str(self.folder)],
                stdin=reading, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                start_new_session=True, cwd="/",
            )  # fmt: skip
        finally:
            os.close(reading)

    def _start(self, uuids: Sequence[str]) -> None:
        output = self.folder / "log" / "start.txt"
        environment = mps_watch.environment(self.folder)
        # The daemon looks for the server program on its PATH.
        server = str(Path(find_program(SERVER) or SERVER).parent)
        environment["PATH"] = os.pathsep.join(filter(None, (environment.get("PATH"), server)))
        # A file, since `run` would wait on a pipe for as long as the daemon holds it open.
        with output.open("wb") as to:
            try:
                code: int | str = subprocess.run(
                    [self._control, "-d"], stdin=subprocess.DEVNULL, stdout=to, stderr=to,
                    env=environment | {"CUDA_VISIBLE_DEVICES": ",".join(uuids)},
                    start_new_session=True, timeout=START_SECONDS, check=False, cwd="/",
                ).returncode  # fmt: skip
            except subprocess.TimeoutExpired:
                code = f"none within {START_SECONDS:.0f} s"
            except OSError as error:
                code = str(error)
        if code != 0:
            raise self._refusal(f"`{self._control} -d` should exit with code 0, found {code}")
        # Otherwise the first client would start the server, and its problems would show only then.
        self._ask(f"start_server -uid {os.getuid()}")
        begin = time.monotonic()
        while not self.servers():
            waited = time.monotonic() - begin
            if self._ask("get_server_list") is None:
                raise self._refusal(f"the daemon of `{self._control}` does not answer")
            if waited > SETTLE_SECONDS and TROUBLE.search(self.log()):
                raise self._refusal("its server does not start")
            if waited > START_SECONDS:
                return  # no errors so far; `MpsSlices.verify` will check that clients attach
            time.sleep(0.05)

    def _refusal(self, what: str) -> PlanError:
        return PlanError(
            f"NVIDIA MPS does not start: {what}. Its log says\n{self.log()}\nThe reason can be "
            f"another MPS server on the GPU, or a compute mode other than the default, which "
            f"`nvidia-smi -q -d COMPUTE` shows. Use `cut=shared`, where processes take turns, or "
            f"one slice."
        )

    def _ask(self, command: str) -> str | None:
        return mps_watch.ask(self._control, self.folder, command)


def _numbers(answer: str | None) -> list[int]:
    return [int(word) for word in (answer or "").split() if word.isdigit()]


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
