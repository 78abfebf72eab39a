"""Start instances on machines that are reached by ssh, as a file lists them: `hosts:FILE`.

The file is described in `hocket.cluster.hosts_file`. The launcher starts one client of ssh a node,
which starts the steward there. The client carries no message of a run: the steward gets its
settings through it, prints its address, and from then on only what it prints comes back. If the
client ends, the run goes on.
"""

from __future__ import annotations

import functools
import ipaddress
import os
import shlex
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

from hocket.cluster.devices import Cluster
from hocket.cluster.hosts_file import Host, read_hosts
from hocket.core.plan.data import Launch, Plan
from hocket.runtime.launch import Command, Fate, Seat
from hocket.runtime.launch.seats import why_not_there
from hocket.runtime.launch.survey.machines import cluster_of, survey_nodes
from hocket.system.children import Child, print_line
from hocket.system.cores import CORES

LAUNCH = Launch("hosts", one_process=False, one_program=False, shares_memory="node", nodes=True)
SSH = "HOCKET_SSH"
"""The environment variable for another command than `ssh`, with its options."""
OPTIONS = (
    *("-T", "-x", "-a", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15"),
    # A client may use a connection that is shared, but leaves none behind that others share.
    *("-o", "ControlMaster=no", "-o", "ServerAliveInterval=30"),
)
RESOLVE_SECONDS = 10.0
_BEGUN = "hocket: this line ends what the shell says"
_SSH_FAILED = 255

# What ssh says -> what to do.
_OF_SSH = {
    "Could not resolve hostname": "no such host is known here. Correct `ssh` of [{name}] in the "
    "hosts file",
    "Host key verification failed": "its key is not the one that is known here. Run `{ssh} {host}` "
    "once by hand, and compare the key",
    "Permission denied": "it refused to log in. Set up a key that asks nothing (`ssh-copy-id "
    "{host}`, `ssh-agent`) until `{ssh} -o BatchMode=yes {host} true` works",
    "Connection refused": "no ssh server listens there. Start one, or write its port into "
    "~/.ssh/config",
    "No route to host": "it cannot be reached. See if it is on, and its address right",
    "Network is unreachable": "there is no way to its network from here. See if its address is "
    "right",
    "timed out": "it does not answer. See if it is on, its address right, and no firewall between",
}
# What Python says, without quotes -> what to do.
_OF_PYTHON = {
    "No module named hocket.": "another version of hocket is installed there. Install the one of "
    "this machine for `{python}`",
    "No module named hocket": "hocket is not installed there for `{python}`. Install it, or name "
    "the Python that has it: `python` of [{name}] in the hosts file",
    "No module named": "a package is missing there. Install hocket with `{python} -m pip install`, "
    "which installs all that it needs",
}
# The exit code of env -> what to do.
_OF_ENV = {
    126: "`{python}` there may not be started. Name another one: `python` of [{name}] in the hosts "
    "file",
    127: "there is no `{python}` there. Name the Python that has hocket: `python` of [{name}] in "
    "the hosts file",
}


class Hosts:
    """The launcher of a cluster of machines that a file lists."""

    def __init__(self, argument: str = "") -> None:
        if not argument:
            raise ValueError("`hosts` names no file: write `hosts:FILE`, as in `hosts:hosts.toml`.")
        file = Path(argument).absolute()
        self._hosts = {host.name: host for host in read_hosts(file)}
        self.launch = replace(LAUNCH, name=f"hosts:{file}")

    def nodes(self, seconds: float) -> Sequence[str]:
        return tuple(self._hosts)

    def survey(self, seconds: float) -> Cluster:
        self._check_addresses()
        chosen = {host.name: host.devices for host in self._hosts.values()}
        return cluster_of(survey_nodes(self, self.nodes(seconds), seconds), self.launch, chosen)

    def host(self, node: str) -> str:
        host = self._hosts[node]
        return host.address or _address_of(_ssh(), host.ssh)

    def why_not_in(self, folder: Path) -> str:
        return ""

    def why_not(self, plan: Plan) -> str:
        return why_not_there(plan, tuple(self._hosts))

    def reserve(self, seats: Sequence[Seat], seconds: float) -> None:
        """Reserve nothing: whoever may log in may start programs."""

    def start(self, seat: Seat, command: Command) -> HostMember:
        """Start a program of Python, whose path and environment are those of the node."""
        return HostMember(self._hosts[seat.node], command.argv[1:], command.stdin)

    def release(self) -> None:
        """Do nothing, since nothing was reserved."""

    def _check_addresses(self) -> None:
        """Refuse an address that only its own machine can reach, if there are other machines."""
        addresses = {name: self.host(name) for name in self._hosts}
        alone = [name for name, address in addresses.items() if _is_loopback(address)]
        if alone and len(alone) < len(addresses):
            raise ValueError(
                f"the node `{alone[0]}` would listen at {addresses[alone[0]]}, which no other "
                f"machine can reach. Write an address or interface of its network into the hosts "
                f'file: [{alone[0]}], address = "..."'
            )


class HostMember(Child):
    """A program on another machine, and the client of ssh that has started it."""

    def __init__(self, host: Host, arguments: Sequence[str], stdin: bytes) -> None:
        self._host, self._ssh = host, _ssh()
        self._has_begun = False
        argv = (*self._ssh, *OPTIONS, host.ssh, remote_command(host, arguments))
        try:
            super().__init__(argv, os.environ, stdin, says=self._print)
        except FileNotFoundError:
            raise ValueError(
                f"there is no command `{argv[0]}` here: install OpenSSH's client, or let {SSH} "
                f"name another command."
            ) from None

    def hello(self, seconds: float) -> str:
        try:
            return self.first_line(seconds)
        except TimeoutError:
            why = (
                "its Python has begun and says nothing, so a disk may be slow there, or JAX or a "
                "driver hang"
                if self._has_begun
                else f"`{shlex.join(self._ssh)} {self._host.ssh}` does not get in and does not "
                f"fail. If it hangs by hand, too, large packets may be lost on the way: compare "
                f"the MTUs (`ip link`)"
            )
            raise TimeoutError(f"{why} (after {seconds:.0f} s)") from None

    def poll(self) -> Fate | None:
        ended, code = super().poll(), self.popen.returncode
        if ended is None or code < 0 or (self._has_begun and code == _SSH_FAILED):
            return None  # only the client has ended: the program may still be running
        how, stderr = ended
        why = why_it_failed(self._host, self._ssh, code, stderr, has_begun=self._has_begun)
        return Fate(f"{how}{f': {why}' if why else ''}", stderr)

    def kill(self, seconds: float) -> bool:
        """End the client. The program then ends when its lease does, or the run hangs up."""
        has_ended = self.poll() is not None
        super().kill(seconds)
        return has_ended

    def _print(self, line: str, is_error: bool) -> None:
        """Print what the program says after its first line. What was said earlier, `poll` tells."""
        if self._has_begun and not self._first.empty():
            print_line(f"[{self._host.name}] {line}", is_error)

    def _read_output(self, pipe: IO[bytes]) -> None:
        """Leave out what the user's shell says before the program begins."""
        while (line := pipe.readline()) and line.strip() != _BEGUN.encode():
            pass
        self._has_begun = bool(line)
        super()._read_output(pipe)


def remote_command(host: Host, arguments: Sequence[str]) -> str:
    """Return the command for the user's shell on another machine, whichever shell that is.

    It prints a line when the program begins. What anything else prints goes to standard error.
    """
    program = shlex.join(("env", *_cores(host), host.python, *arguments))
    begin = f"echo {shlex.quote(_BEGUN)} >&3 && exec {program} >&3 3>&-"
    # On lines of its own, so that it may end in a comment. It must not read the program's input.
    before = f"{{\n{host.before}\n}} </dev/null && " if host.before else ""
    shell = "bash -lc" if host.before else "sh -c"
    return f"exec {shell} {shlex.quote(f'exec 3>&1 1>&2; {before}{begin}')}"


def why_it_failed(
    host: Host, ssh: Sequence[str], code: int, stderr: str, *, has_begun: bool
) -> str:
    """Return why no program runs on another machine, and what to do; "" if that is not known."""
    words = {"name": host.name, "host": host.ssh, "python": host.python, "ssh": shlex.join(ssh)}
    if has_begun:
        plain = stderr.replace("'", "")
        of_python = next((do for said, do in _OF_PYTHON.items() if said in plain), "")
        return _OF_ENV.get(code, of_python).format(**words)
    if code == _SSH_FAILED:
        by_hand = "ssh failed. Try `{ssh} -o BatchMode=yes {host} true` by hand"
        does = next((do for said, do in _OF_SSH.items() if said in stderr), by_hand)
        return f"`{host.ssh}`: {does.format(**words)}"
    if host.before:
        return f"`before` of [{host.name}] in the hosts file failed there: {host.before}"
    return f"the shell of `{host.ssh}` did not start a program"


def _ssh() -> tuple[str, ...]:
    return tuple(shlex.split(os.environ.get(SSH, ""))) or ("ssh",)


def _cores(host: Host) -> tuple[str, ...]:
    return (f"{CORES}=:{host.cores}",) if host.cores else ()


@functools.cache
def _address_of(ssh: tuple[str, ...], name: str) -> str:
    """Return the address of an ssh server, whose name may be one of the user's configuration."""
    host = name.rpartition("@")[2]
    try:
        said = subprocess.run(
            [*ssh, "-G", name], capture_output=True, text=True, timeout=RESOLVE_SECONDS, check=True,
            stdin=subprocess.DEVNULL,
        ).stdout  # fmt: skip
        settings = (line.partition(" ") for line in said.splitlines())
        host = next(value for key, _, value in settings if key == "hostname")
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except (OSError, subprocess.SubprocessError, StopIteration):
        return host  # the node itself may know it; an error of ssh is told when it starts


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address in ("lo", "localhost")


LAUNCHER = Hosts
