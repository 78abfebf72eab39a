"""The survey of a cluster: a short program on every node describes its machine."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hocket.cluster import node_survey
from hocket.cluster.devices import Cluster, Device, DeviceLink, Node
from hocket.core.plan.data import Launch
from hocket.core.plan.device_id import DeviceId
from hocket.errors import unknown
from hocket.runtime.launch import ClusterLauncher, Command, Member, Seat
from hocket.runtime.launch.watch import GRACE_SECONDS, fate_of
from hocket.system.children import last_words
from hocket.system.nodes.resources import shortages
from hocket.system.nodes.versions import differences, versions


@dataclass(frozen=True)
class Surveyed:
    """A node, its description, and what keeps it from taking part in a run."""

    node: str
    machine: Mapping[str, Any]
    """The result of `hocket.cluster.survey.survey` there, with `versions` and `free`; empty without
    an answer of the node."""
    problems: tuple[str, ...] = ()
    """The problems of the node, and what to do about each."""

    @property
    def shortages(self) -> list[str]:
        """The resources that are too scarce for most runs, though a small run may do with them."""
        return shortages(self.machine.get("free", {}))


def survey_nodes(
    launcher: ClusterLauncher, nodes: Sequence[str], seconds: float, *, slices: bool = False
) -> list[Surveyed]:
    """Describe all nodes at once. With `slices`, also try how each device can be cut there."""
    deadline = time.monotonic() + seconds
    arguments = (str(int(seconds) + 1), *(["slices"] if slices else []))
    command = Command((sys.executable, "-P", "-m", node_survey.__name__, *arguments), os.environ)
    members: list[Member] = []
    try:
        members += [launcher.start(Seat(node, (node,), node=node), command) for node in nodes]
        return [
            _surveyed(node, member, deadline) for node, member in zip(nodes, members, strict=True)
        ]
    finally:
        for member in members:
            if fate_of(member, GRACE_SECONDS) is None:
                member.kill(GRACE_SECONDS)


def cluster_of(
    surveyed: Sequence[Surveyed], launch: Launch, chosen: Mapping[str, Sequence[str]]
) -> Cluster:
    """Return the cluster of nodes that were surveyed, or raise an error that names all problems.

    `chosen` has the devices to use on each node. Of a node without any, all accelerators are used,
    or the CPU if there are none.
    """
    if wrong := [f"the node `{x.node}`: {problem}" for x in surveyed for problem in x.problems]:
        raise ValueError("\n".join(wrong))
    machines = {each.node: each.machine for each in surveyed}
    nodes = tuple(Node(name, of["cores"], of["memory"]) for name, of in machines.items())
    devices = [
        Device(DeviceId.read(f"{name}/{device['name']}"), device["kind"], memory=device["memory"])
        for name, machine in machines.items()
        for device in _chosen(name, machine["devices"], chosen.get(name, ()))
    ]
    links = [
        DeviceLink(f"{name}/{link['one']}", f"{name}/{link['other']}", link["how"])
        for name, machine in machines.items()
        for link in machine["links"]
    ]
    memory = sum(node.memory or 0 for node in nodes) or None
    cores = sum(node.cores for node in nodes)
    notes = tuple(unequal_processors(surveyed))
    return Cluster(tuple(devices), cores, memory, tuple(links), nodes, launch, notes)


def unequal_processors(surveyed: Sequence[Surveyed]) -> list[str]:
    """Return a note if the nodes have different processors, whose numbers differ in some bits."""
    nodes: dict[str, list[str]] = {}
    for each in surveyed:
        nodes.setdefault(each.machine.get("processor", "unknown"), []).append(each.node)
    if len(nodes) < 2:
        return []
    which = "; ".join(f"{', '.join(names)}: {processor}" for processor, names in nodes.items())
    return [f"note: the processors differ ({which}), so numbers agree to 1e-5, not in every bit"]


def _surveyed(node: str, member: Member, deadline: float) -> Surveyed:
    """Return what a node has answered, or why it did not."""
    try:
        line = member.hello(max(0.0, deadline - time.monotonic()))
    except TimeoutError as error:
        return Surveyed(node, {}, (f"it did not describe itself in time: {error}.",))
    if not line:
        fate = fate_of(member, GRACE_SECONDS)
        return Surveyed(
            node,
            {},
            (last_words(*fate) if fate else "the connection to it ended.",),
        )
    try:
        machine = json.loads(line)
        return Surveyed(node, machine, tuple(differences(versions(), machine["versions"])))
    except (ValueError, KeyError, TypeError):
        return Surveyed(node, {}, (f"it answered with {line[:200]!r}",))


def _chosen(
    node: str, devices: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> list[Mapping[str, Any]]:
    by_name = {device["name"]: device for device in devices}
    if absent := [name for name in names if name not in by_name]:
        raise ValueError(unknown("device", absent[0], by_name, f"of the node `{node}`"))
    return [by_name[name] for name in names] or accelerators_or_host(devices)


def accelerators_or_host(devices: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the accelerators among the devices of a node or, if there are none, the CPU."""
    return [x for x in devices if not DeviceId.read(x["name"]).is_host] or list(devices)
