"""An sshd of the tests' own, with keys and a port of its own, on the loopback interface alone."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.faults import wait_until

ROOT = Path(__file__).parents[1]
MARK = "HOCKET_TEST_HOSTS"
SBIN = "/usr/local/sbin:/usr/sbin:/sbin"


@dataclass(frozen=True)
class Sshd:
    """A running server: how to reach it, and hosts files whose nodes are all reached through it."""

    folder: Path
    pid: int

    @property
    def ssh(self) -> str:
        """What HOCKET_SSH has to be."""
        return f"ssh -F {shlex.quote(str(self.folder / 'ssh_config'))}"

    def hosts(
        self, path: Path, count: int = 2, *, sources: Path = ROOT / "src", **keys: str
    ) -> str:
        """Write a hosts file with nodes n0, n1, ... Return the name of the cluster.

        The programs there have MARK=path in their environment, by which `marked` finds them.
        """
        variables = {
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": os.environ["JAX_COMPILATION_CACHE_DIR"],
            "PYTHONPATH": f"{sources}:{ROOT}",
            MARK: str(path),
        }
        words = (f"{name}={shlex.quote(value)}" for name, value in variables.items())
        before = f"export {' '.join(words)}"
        table = {"ssh": "127.0.0.1", "python": sys.executable, "before": before, **keys}
        lines = [f'{key} = "{value}"' for key, value in table.items() if value]
        nodes = ["\n".join([f"[n{index}]", *lines]) for index in range(count)]
        path.write_text("\n\n".join(nodes))
        return f"hosts:{path}"


def marked(path: Path) -> dict[int, str]:
    """Return the command lines of the processes that were started by a hosts file, by their ids."""
    lines = dict[int, str]()
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # not of this user, or gone
            if process.name.isdigit() and f"{MARK}={path}\0" in f"{_text(process / 'environ')}\0":
                lines[int(process.name)] = _text(process / "cmdline").replace("\0", " ")
    return lines


def clients(path: Path) -> list[int]:
    """Return the clients of ssh that start programs for a hosts file."""
    pids = list[int]()
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            line = _text(process / "cmdline") if process.name.isdigit() else ""
            pids += [int(process.name)] if line.startswith("ssh\0") and str(path) in line else []
    return pids


def _text(path: Path) -> str:
    return path.read_bytes().decode(errors="replace")


def program() -> str | None:
    """Return the path of sshd, which must be absolute; None if it is not installed."""
    return shutil.which("sshd", path=f"{os.environ['PATH']}:{SBIN}")


def start(folder: Path) -> subprocess.Popen[bytes]:
    """Start the server, and return when it listens. Whoever calls this ends it."""
    for key in ("host_key", "user_key"):
        made = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
        subprocess.run(made, check=True)
    # As on many machines, something is printed before a command begins.
    noise = """command="echo Welcome; exec sh -c \\"$SSH_ORIGINAL_COMMAND\\"" """
    (folder / "authorized_keys").write_text(noise + (folder / "user_key.pub").read_text())
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd of root drops its privileges there
    port = _free_port()
    (folder / "known_hosts").write_text(
        f"[127.0.0.1]:{port} {(folder / 'host_key.pub').read_text()}"
    )
    (folder / "ssh_config").write_text(
        f"Port {port}\nIdentityFile {folder}/user_key\nIdentitiesOnly yes\nIdentityAgent none\n"
        f"UserKnownHostsFile {folder}/known_hosts\nGlobalKnownHostsFile none\n"
        f"StrictHostKeyChecking yes\nConnectionAttempts 1\n"
    )
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host_key\nPidFile none\n"
        f"AuthorizedKeysFile {folder}/authorized_keys\nPasswordAuthentication no\n"
        f"KbdInteractiveAuthentication no\nStrictModes no\nPermitRootLogin yes\nUsePAM no\n"
        f"MaxStartups 100\nLogLevel VERBOSE\n"
    )
    path = program()
    assert path
    log = folder / "log"
    server = subprocess.Popen(
        [path, "-D", "-E", str(log), "-f", str(folder / "sshd_config")], stdin=subprocess.DEVNULL
    )
    wait_until(lambda: server.poll() or (log.exists() and "Server listening" in log.read_text()))
    assert server.poll() is None, log.read_text()
    return server


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]
