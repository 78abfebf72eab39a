"""The hosts file: the machines of a cluster that are reached by ssh.

python = "/opt/venv/bin/python"     # above the first table: for all nodes

[n1]                                # the name of a node, here also that of its host
[n2]
ssh = "me@10.0.0.2"                 # what `ssh` is told
address = "eth1"                    # what the node listens at
before = "source ~/conda.sh && conda activate rl"
cores = 8
devices = ["gpu:0", "gpu:1"]
"""

from __future__ import annotations

import re
import sys
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from hocket.errors import unknown

EXAMPLE = '[n1]\nssh = "me@10.0.0.1"'
_NODE = re.compile(r"[^/:\s]+")
_DEVICE = re.compile(r"[^/:\s]+:\d+")


@dataclass(frozen=True)
class Host:
    """A machine of a hosts file."""

    name: str
    ssh: str
    """The machine as `ssh` is told: `HOST`, `USER@HOST`, or a name of the user's configuration."""
    address: str = ""
    """The address or interface at which the node listens. "" is the address of the ssh server."""
    python: str = sys.executable
    """The Python to start there."""
    before: str = ""
    """Commands for bash to run there first, such as to load modules or a conda environment."""
    cores: int | None = None
    """The most cores to use there; None for all."""
    devices: tuple[str, ...] = ()
    """The devices to use there. If empty, all accelerators, or the CPU if there are none."""


def read_hosts(path: Path) -> tuple[Host, ...]:
    """Return the machines of a hosts file. An error names the file, the table and what to write."""
    try:
        tables = tomllib.loads(path.read_text())
    except OSError as error:
        raise ValueError(
            f"the hosts file `{path}` cannot be read: {error.strerror}. Write one with a table for "
            f"each machine:\n{EXAMPLE}"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"the hosts file `{path}` is no TOML: {error}.") from None
    nodes = {name: table for name, table in tables.items() if isinstance(table, dict)}
    of_all = {key: value for key, value in tables.items() if key not in nodes}
    if "ssh" in of_all:
        raise ValueError(
            f"the hosts file `{path}` has `ssh` above its first table, where it would count for "
            f"all nodes: put it below the name of one, such as `[n1]`."
        )
    if not nodes:
        raise ValueError(f"the hosts file `{path}` names no machine: add one, as in\n{EXAMPLE}")
    _check(of_all, f"the hosts file `{path}`, above its first table")
    return tuple(_host(path, name, of_all, table) for name, table in nodes.items())


def _host(path: Path, name: str, of_all: dict[str, Any], table: dict[str, Any]) -> Host:
    where = f"the hosts file `{path}`, table [{name}]"
    if not _NODE.fullmatch(name) or name.startswith("-"):
        raise ValueError(
            f"{where}: a node's name has no spaces, no `/` and no `:`, and does not begin with "
            f"`-`. Give it a short one, such as [n1], and write `ssh = ...` below."
        )
    _check(table, where)
    if table.get("ssh", name).startswith("-"):
        raise ValueError(f"{where}: `ssh` is a host or USER@HOST, found {table['ssh']!r}.")
    given: dict[str, Any] = {"ssh": name, **of_all, **table}
    given["devices"] = tuple(given.get("devices", ()))
    return Host(name, **given)


def _check(table: dict[str, Any], where: str) -> None:
    """Refuse unknown keys, and values of the wrong kind."""
    keys = [field.name for field in fields(Host) if field.name != "name"]
    for key, value in table.items():
        if key not in keys:
            raise ValueError(unknown("key", key, keys, f"in {where}"))
        needed = _needed(key, value)
        if needed:
            raise ValueError(f"{where}: `{key}` must be {needed}, found {value!r}.")


def _needed(key: str, value: Any) -> str:
    """Return what the value of a key must be if it is something else, else ""."""
    if key == "cores":
        return "" if type(value) is int and value > 0 else "a number from 1 on"
    if key == "devices":
        texts = isinstance(value, list) and all(isinstance(text, str) for text in value)
        if texts and value and all(_DEVICE.fullmatch(text) for text in value):
            return ""
        return 'a list of devices, such as ["gpu:0"]'
    return "" if isinstance(value, str) and value.strip() else "a text"
