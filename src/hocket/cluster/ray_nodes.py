"""The nodes of a Ray cluster: how a cluster is named, the connection to it, and what is free there.

    ray                         the cluster that this process is in, or that RAY_ADDRESS names
    ray:HOST:PORT               the cluster at this address
    ray:nodes=4,cpus=8,gpus=1   any four nodes of the former that have this much free

The connection lasts until this process ends, since Ray has one a process. Ray's own configuration
has the token. Needs `pip install 'hocket[ray]'`.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from hocket.errors import unknown

ANSWER_SECONDS = 4.0
"""Seconds within which Ray must answer at an address. Without this check it tries for minutes."""
CLIENT = "ray://"
JOB = "ray job submit --working-dir . -- hocket train ... --cluster ray"
_ADDRESS = re.compile(r"(\[[^\]\s]+\]|[^:=,\s]+):(\d+)")
_NODE = re.compile(r"[^/:\s]+")
_NUMBER = re.compile(r"(\d+)")
# What begins every connection of HTTP/2, as gRPC uses it: the preface, and empty settings.
_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_SETTINGS = b"\x04"


@dataclass(frozen=True)
class Wanted:
    """The nodes that the name of a cluster asks for."""

    address: str = ""
    """The address of Ray's GCS; "" for the cluster that this process is in."""
    nodes: int | None = None
    """The number of nodes, whichever they are; None for all."""
    cpus: int | None = None
    """The CPUs to reserve on a node; None for all that it has."""
    gpus: int | None = None
    """The GPUs to reserve on a node; None for those that a run uses."""

    def __str__(self) -> str:
        parts = [counted(count, kind) for kind, count in self.bundle.items()]
        return f"{counted(self.nodes or 1, 'node')} with {' and '.join(parts or ['a CPU'])} each"

    @property
    def bundle(self) -> dict[str, float]:
        """The least that a node must have, as Ray counts it."""
        counts = {"CPU": self.cpus, "GPU": self.gpus}
        return {kind: count for kind, count in counts.items() if count}


def counted(count: float, what: str) -> str:
    return f"{count:g} {what}{'' if count == 1 else 's'}"


class RayNode(NamedTuple):
    """A node of a Ray cluster."""

    name: str
    id: str
    address: str
    total: Mapping[str, float]
    """The CPUs, GPUs and so on that Ray counts on the node."""
    free: Mapping[str, float]
    """The part of them that nobody has reserved."""

    @property
    def cpus(self) -> int:
        return int(self.total.get("CPU", 0))

    @property
    def gpus(self) -> int:
        return int(self.total.get("GPU", 0))

    def lacks(self, bundle: Mapping[str, float]) -> list[str]:
        """Return what a bundle needs and the node does not have free, as texts."""
        return [
            f"{self.free.get(kind, 0):g} of its {counted(self.total.get(kind, 0), kind)} free"
            for kind, count in bundle.items()
            if self.free.get(kind, 0) < count
        ]


def wanted_of(argument: str) -> Wanted:
    """Return what the part of a cluster's name after `ray:` asks for."""
    if argument.startswith("//"):
        _refuse_client(f"ray:{argument}")
    if not argument or _ADDRESS.fullmatch(argument):
        return Wanted(argument)
    names, counts = ("nodes", "cpus", "gpus"), dict[str, int]()
    for option in argument.split(","):
        name, equals, count = option.partition("=")
        if not equals or not count.isdigit() or (int(count) < 1 and name != "gpus"):
            raise ValueError(
                f"`ray:{argument}` names no cluster, because of `{option}`: write `ray`, "
                f"`ray:HOST:PORT` with the address of Ray's GCS (such as ray:10.0.0.1:6379), or "
                f"`ray:nodes=4,cpus=8,gpus=1`."
            )
        if name not in names:
            raise ValueError(unknown("option", name, names, f"in `ray:{argument}`"))
        counts[name] = int(count)
    return Wanted("", *map(counts.get, names))


def connect(address: str) -> None:
    """Connect this process to a Ray cluster, unless it is connected already."""
    ray, address = ray_module(), address or os.environ.get("RAY_ADDRESS", "")
    if address.startswith(CLIENT) or ray.util.client.ray.is_connected():
        _refuse_client(address or CLIENT)
    if ray.is_initialized():
        mine = ray.get_runtime_context().gcs_address
        if address not in ("", "auto") and mine not in (address, _numeric(address)):
            raise ValueError(
                f"this process is connected to the Ray cluster at {mine}, and a process can be "
                f"connected to one only: use that one, with cluster=`ray`, or start another "
                f"process for {address}."
            )
    elif address in ("", "auto"):
        _connect(ray, "auto")
    else:
        _check_answers(address)
        _connect(ray, address)


def _connect(ray: Any, address: str) -> None:
    """Connect to a cluster. Ray tries for 20 s, and writes the reasons to standard error only."""
    try:
        with _own_handlers():
            ray.init(address=address, configure_logging=False, log_to_driver=False)
    except ConnectionError as error:
        if address == "auto":
            raise ValueError(
                "this process is in no Ray cluster, and none runs on this machine: start one with "
                "`ray start --head`, or name one with RAY_ADDRESS or `ray:HOST:PORT`."
            ) from error
        raise ValueError(
            f"the Ray cluster at {address} turned this process away: {error}. If it has a token, "
            f"set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to the token with "
            f"which it was started. If that is right, see that the port is the one of Ray's GCS, "
            f"as `ray status` shows it."
        ) from error
    except (RuntimeError, ray.exceptions.RayError) as error:
        raise ValueError(
            f"this process cannot use the Ray cluster at {address}: {error}"
        ) from error


def ray_nodes() -> dict[str, RayNode]:
    """Return the nodes of the connected cluster that have CPUs, by their names.

    A node has the name of its host if no other node has it, else n0, n1, ... in the order of Ray's
    ids. It keeps its name for as long as this process lives.
    """
    ray = ray_module()
    alive = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    alive.sort(key=lambda node: node["NodeID"])
    _name({node["NodeID"]: node["NodeManagerHostname"] for node in alive})
    free = ray._private.state.available_resources_per_node()
    nodes = [
        RayNode(_names[key], key, node["NodeManagerAddress"], node["Resources"], free.get(key, {}))
        for node in alive
        for key in [node["NodeID"]]
    ]
    return {node.name: node for node in sorted(nodes, key=_by_name)}


_names: dict[str, str] = {}
"""The name of each node, by Ray's id of it."""


def _name(hosts: Mapping[str, str]) -> None:
    """Give a name to each node that has none yet, from the names of the hosts by id."""
    numbers = (f"n{i}" for i in itertools.count())
    for key, host in hosts.items():
        if key not in _names:
            taken = {*_names.values(), *hosts.values()}
            is_unique = [*hosts.values(), *_names.values()].count(host) == 1
            own = is_unique and _NODE.fullmatch(host)
            _names[key] = host if own else next(name for name in numbers if name not in taken)


def _by_name(node: RayNode) -> list[str | int]:
    """Return the key by which n2 comes before n10."""
    return [int(part) if i % 2 else part for i, part in enumerate(_NUMBER.split(node.name))]


def nodes_text(nodes: Mapping[str, RayNode]) -> str:
    """Return the nodes with what is free on each, for an error."""
    about = (
        f"{node.name} with {node.free.get(kind, 0):g} of {counted(node.total[kind], kind)}"
        for node in nodes.values()
        for kind in ("CPU", "GPU")
        if kind in node.total
    )
    return f"free are {', '.join(about)}" if nodes else "it has no node with CPUs"


def ray_module() -> Any:
    """Return the package `ray`, which is imported only when a cluster of Ray is named."""
    try:
        with _own_handlers():
            ray = importlib.import_module("ray")
            for name in ("client", "scheduling_strategies"):
                importlib.import_module(f"ray.util.{name}")
    except ImportError as error:
        raise ImportError(
            "a cluster of Ray needs the package ray. Run: pip install 'hocket[ray]'"
        ) from error
    return ray


def session() -> str:
    """Return the name of the cluster's session, which is that of the folder that ends with it."""
    return ray_module().get_runtime_context().get_session_name()


def _refuse_client(address: str) -> None:
    raise ValueError(
        f"`{address}` is an address of Ray Client, which cannot carry a run, because this process "
        f"would not be in the cluster. Submit the command to the cluster: `{JOB}`."
    )


def _check_answers(address: str) -> None:
    """Raise if nothing at an address speaks the protocol of Ray's GCS."""
    host, _, port = address.rpartition(":")
    try:
        where = host.strip("[]"), int(port)
        with socket.create_connection(where, ANSWER_SECONDS) as connection:
            connection.settimeout(ANSWER_SECONDS)
            connection.sendall(_HTTP2)
            answer = connection.recv(9)
        why = "" if answer[3:4] == _SETTINGS else "something else than Ray listens there"
    except (OSError, ValueError) as error:
        why = str(error)
    if why:
        raise ValueError(
            f"no Ray cluster answers at {address}: {why}. The address is the one of Ray's GCS, as "
            f"`ray start --head` prints it (port 6379, if it was not told another)."
        )


def _numeric(address: str) -> str:
    """Return an address with the number of its host, as Ray names its own."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError):
        return f"{socket.gethostbyname(host)}:{port}"
    return address


@contextlib.contextmanager
def _own_handlers() -> Iterator[None]:
    """Keep this process's handlers of SIGTERM and of uncaught errors.

    Ray would exit at once on SIGTERM, and tell its GCS of an error, waiting a minute if it is gone.
    """
    on_error, on_sigterm = sys.excepthook, signal.getsignal(signal.SIGTERM)
    yield
    sys.excepthook = on_error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, on_sigterm)
