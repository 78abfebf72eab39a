"""A Ray cluster of the tests' own, whose nodes are all this machine, on the loopback interface."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "src"
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_HEALTH = {"initial_delay_ms": 500, "period_ms": 500, "timeout_ms": 500, "failure_threshold": 3}


class RayCluster:
    """A running cluster. Its processes are children of this one, each node with its raylet."""

    def __init__(self, folder: Path, *, dashboard: bool = False) -> None:
        self.folder, self.address = folder, f"127.0.0.1:{_free_port()}"
        self.dashboard = f"127.0.0.1:{_free_port()}"
        self.token = secrets.token_hex(32)
        self.nodes: list[subprocess.Popen[bytes]] = []
        self._with_dashboard, self._started = dashboard, 0
        (folder / "bin").mkdir()
        command = folder / "bin" / "hocket"
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m hocket "$@"\n')
        command.chmod(0o755)

    @property
    def env(self) -> dict[str, str]:
        """The variables with which a process may use the cluster."""
        return {
            "RAY_ADDRESS": self.address, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token,
            "RAY_TMPDIR": str(self.folder), "RAY_USAGE_STATS_ENABLED": "0",
        }  # fmt: skip

    def add(self, *, cpus: int = 2, gpus: int = 0) -> subprocess.Popen[bytes]:
        """Start a node, which is the head if it is the first, and return when it has begun."""
        port, (_, dashboard_port) = self.address.rpartition(":")[2], self.dashboard.split(":")
        dashboard = ["--include-dashboard", str(self._with_dashboard)]
        dashboard += ["--dashboard-port", dashboard_port]
        where = [f"--address={self.address}"]
        if not self.nodes:
            client = f"--ray-client-server-port={_free_port()}"
            where = ["--head", "--port", port, *dashboard, client]
        ray = "import ray.scripts.scripts as ray; ray.main()"
        node = subprocess.Popen(
            [sys.executable, "-c", ray, "start", "--block", *where,
             "--node-ip-address=127.0.0.1", f"--num-cpus={cpus}", f"--num-gpus={gpus}",
             f"--temp-dir={self.folder / str(self._started)}", "--object-store-memory=80000000"],
            env=self._env_of_nodes(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, cwd=self.folder,
        )  # fmt: skip
        self._started += 1
        self.nodes.append(node)
        assert node.stdout
        said = b""
        for line in node.stdout:
            said += line
            if b"--block" in line:
                return node
        raise AssertionError(f"Ray has not started:\n{said.decode()}")

    def stop(self) -> None:
        """End all nodes, the head last."""
        while self.nodes:
            end(self.nodes.pop())

    def _env_of_nodes(self) -> Mapping[str, str]:
        given = ("JAX_PLATFORMS", "JAX_COMPILATION_CACHE_DIR", "LANG", "TMPDIR")
        health = {f"RAY_health_check_{name}": str(value) for name, value in _HEALTH.items()}
        own = {name: value for name, value in self.env.items() if name != "RAY_ADDRESS"}
        return {
            **{name: os.environ[name] for name in given if name in os.environ}, **own, **health,
            "HOME": str(self.folder), "PYTHONPATH": str(SOURCES),
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "RAY_memory_monitor_refresh_ms": "0",
        }  # fmt: skip


def end(node: subprocess.Popen[bytes]) -> None:
    """End a node as an administrator would, by its own process."""
    node.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        node.communicate(timeout=20)
    node.kill()
    node.communicate()


@contextlib.contextmanager
def own_network() -> Iterator[None]:
    """Move this process into a network with nothing but the loopback interface, if it may.

    Ray listens on all interfaces, and this keeps the machine's others out of reach.
    """
    libc, ip = ctypes.CDLL(None, use_errno=True), shutil.which("ip")
    before = os.open("/proc/self/ns/net", os.O_RDONLY)
    try:
        moved = ip is not None and libc.unshare(_NEW_NETWORK) == 0
        if ip and moved:
            subprocess.run([ip, "link", "set", "lo", "up"], check=True)
        yield
        if moved:
            libc.setns(before, _NEW_NETWORK)
    finally:
        os.close(before)


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]
