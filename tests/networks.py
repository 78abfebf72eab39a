"""Nodes with addresses of their own: network namespaces on a bridge. It needs root and `ip`."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hocket.runtime.launch import Command, Seat
from hocket.runtime.launch.launchers.loopback import Loopback
from hocket.runtime.launch.launchers.processes import ChildMember

ROOT = Path(__file__).parents[1]


class Apart(Loopback):
    """A cluster of two nodes, each in a namespace, for a process that is in one beside them."""

    def __init__(self, prefix: str) -> None:
        super().__init__("2")
        self._prefix = prefix

    def host(self, node: str) -> str:
        return address_of(node)

    def start(self, seat: Seat, command: Command) -> ChildMember:
        argv = ("ip", "netns", "exec", f"{self._prefix}{seat.node}", *command.argv)
        return ChildMember(argv, command.env, command.stdin)


def address_of(node: str) -> str:
    return f"10.77.0.{1 + ['n0', 'n1', 'here'].index(node)}"


def run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@contextlib.contextmanager
def namespaces() -> Iterator[str]:
    """Make namespaces for `n0`, `n1` and `here`, whose names begin with the text that is returned.

    They are joined by a bridge, in a namespace of its own. Its port to `n0` is called `to-n0`.
    """
    prefix, made = f"hk{os.getpid()}", list[str]()
    bridge = f"{prefix}bridge"
    try:
        for name in ("bridge", "n0", "n1", "here"):
            run("ip", "netns", "add", f"{prefix}{name}")
            made.append(f"{prefix}{name}")
            run("ip", "-n", f"{prefix}{name}", "link", "set", "lo", "up")
        run("ip", "-n", bridge, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", bridge, "link", "set", "br0", "up")
        for name in ("n0", "n1", "here"):
            mine, port = f"{prefix}{name}", f"to-{name}"
            ends = ("netns", mine, "type", "veth", "peer", "name", port, "netns", bridge)
            run("ip", "link", "add", "eth0", *ends)
            run("ip", "-n", bridge, "link", "set", port, "master", "br0", "up")
            run("ip", "-n", mine, "addr", "add", f"{address_of(name)}/24", "dev", "eth0")
            run("ip", "-n", mine, "link", "set", "eth0", "up")
        yield prefix
    finally:
        for name in made:
            run("ip", "netns", "del", name)


def are_possible() -> bool:
    try:
        with namespaces():
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


def measured(prefix: str) -> dict[str, Any]:
    """Measure the network between the nodes, from a process in the namespace `here`."""
    code = f"""
import dataclasses, json
from hocket.runtime.launch.survey.ways import measure
from tests.networks import Apart
print(json.dumps(dataclasses.asdict(measure(Apart("{prefix}"), ["n0", "n1"], 60.0))))
"""
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    command = ["ip", "netns", "exec", f"{prefix}here", sys.executable, "-c", code]
    return json.loads(subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE).stdout)
