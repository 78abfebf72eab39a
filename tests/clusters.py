"""Clusters built in Python. A plan can be made for them and looked at, and nothing can start it."""

from __future__ import annotations

from hocket import Plan
from hocket.cluster import Cluster, Device, Node
from hocket.core.plan.device_id import DeviceId

GIB = 2**30


def node(
    name: str, cores: int = 8, gpus: int = 0, memory: int | None = 64 * GIB
) -> tuple[Node, list[Device]]:
    """A node with GPUs, or with one CPU device if it has none."""
    kind, count = ("gpu", gpus) if gpus else ("cpu", 1)
    ids = [DeviceId(kind, i, name) for i in range(count)]
    room = 80 * GIB if gpus else memory
    return Node(name, cores, memory), [Device(x, kind.upper(), memory=room) for x in ids]


def cluster(*made: tuple[Node, list[Device]]) -> Cluster:
    nodes = tuple(one for one, _ in made)
    devices = tuple(device for _, mine in made for device in mine)
    return Cluster(devices, sum(one.cores for one in nodes), nodes=nodes)


def hosts(*cores: int) -> Cluster:
    """Nodes without accelerators: n0 with the first number of cores, and so on."""
    return cluster(*(node(f"n{i}", count) for i, count in enumerate(cores)))


def gpus(*counts: int) -> Cluster:
    """Nodes with these numbers of GPUs each."""
    return cluster(*(node(f"n{i}", 8, count) for i, count in enumerate(counts)))


def by_node(plan: Plan, place: str) -> dict[str, int]:
    """How many replicas of a place are on each node."""
    spot = plan.place(place)
    nodes = [spot.node(i) for i in range(spot.replicas)]
    return {name: nodes.count(name) for name in dict.fromkeys(nodes)}
