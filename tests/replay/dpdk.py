"""The DPDK programs as processes, for their tests."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

NODE, RELAY, LOAD = "hocket-replay-node", "hocket-replay-relay", "hocket-replay-load"
PROGRAMS = (NODE, RELAY, LOAD)
SCHEMA = ("obs:float32:4", "image:uint8:32x32", "action:int32")
# With few cores, programs that poll must soon yield to others.
POLITE = ("--poll-us", "20")
NOBODY = 65534


def missing_for_build() -> str:
    for program in ("cmake", "pkg-config"):
        if not shutil.which(program):
            return f"{program} is not installed, which builds the programs with DPDK"
    if subprocess.run(["pkg-config", "--exists", "libdpdk"], check=False).returncode:
        return "DPDK is not installed (apt-get install libdpdk-dev)"
    return ""


@dataclass
class Started:
    process: subprocess.Popen[str]
    log: Path

    def text(self) -> str:
        return self.log.read_text()

    def stop(self) -> str:
        """End a program, check that it ends without an error, and return its output."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(10) == 0, f"{self.process.returncode}: {self.text()}"
        return self.text()


@dataclass
class Place:
    """A folder for sockets, and the programs that use them."""

    folder: Path
    programs: Path
    started: list[Started] = field(default_factory=list)

    def start(
        self, program: str, *arguments: str, says: str, before: tuple[str, ...] = (),
        user: int | None = None,
    ) -> Started:  # fmt: skip
        log = self.folder / f"{len(self.started)}-{program}.log"
        command = [*before, str(self.folder / program), *arguments]
        with log.open("w") as out:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, text=True,
                user=user, group=user, extra_groups=None if user is None else [],
                cwd=self.folder,
            )  # fmt: skip
        started = Started(process, log)
        self.started.append(started)
        wait_until(lambda: says in started.text() or process.poll() is not None)
        assert says in started.text(), started.text()
        return started

    def memif(self, number: int, socket: str, role: str) -> tuple[str, str]:
        path = self.folder / f"{socket}.sock"
        device = f"net_memif{number},role={role},socket={path},socket-abstract=no"
        return "--vdev", device

    def end(self) -> None:
        for one in self.started:
            one.process.terminate()
        for one in self.started:
            try:
                one.process.wait(10)
            finally:
                one.process.kill()


def wait_until(done: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not done() and time.monotonic() < end:
        time.sleep(0.01)


def unprivileged() -> int | None:
    return NOBODY if os.getuid() == 0 else None


def node(
    place: Place, *options: str, address: str = "10.0.0.2:7777", schema: tuple[str, ...] = SCHEMA,
    capacity: int = 1000, **more: Any,
) -> Started:  # fmt: skip
    """Start a node with these devices and options."""
    return place.start(
        NODE, "--address", address, "--schema", *schema, "--capacity", str(capacity), *POLITE,
        *options, says="serving replay", **more,
    )  # fmt: skip


def relay(
    place: Place, *device: str, to: str = "10.0.0.2:7777", patience: float = 5.0, **more: Any
) -> Started:
    return place.start(
        RELAY, "--socket", str(place.folder / "relay"), "--address", "10.0.0.1", "--node", to,
        "--patience", str(patience), *POLITE, *device, says="relaying", **more,
    )  # fmt: skip


def rows_from(first: int, num: int) -> dict[str, Any]:
    numbers = np.arange(first, first + num)
    return {
        "obs": np.repeat(numbers[:, None], 4, 1).astype(np.float32),
        "image": (numbers[:, None, None] + np.arange(1024).reshape(32, 32)).astype(np.uint8),
        "action": numbers.astype(np.int32),
    }


def check_rows(rows: dict[str, Any]) -> None:
    numbers = rows["action"]
    for name, values in rows_from(0, numbers.max() + 1).items():
        np.testing.assert_array_equal(rows[name], values[numbers])


def address_of(place: Place) -> str:
    return f"dpdk://{place.folder / 'relay'}"
