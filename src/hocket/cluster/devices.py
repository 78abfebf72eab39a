"""The devices of this machine, with ids that a plan can hold."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax

from hocket.cluster.nvidia import nvml
from hocket.cluster.nvidia.cuda import gpu_uuid, is_gpu
from hocket.core.plan.data import Launch
from hocket.core.plan.device_id import DeviceId
from hocket.errors import PlanError, unknown
from hocket.system.cores import usable_cores
from hocket.system.platforms import HOST
from hocket.system.steward import NODE
from hocket.system.text import names_text

ON_NODES = Launch(one_process=False, one_program=False, shares_memory="node", nodes=True)
"""How instances run on a cluster that names no launcher, for plans that are only looked at."""


@dataclass(frozen=True)
class Device:
    """One accelerator, or one CPU device, which may be simulated."""

    id: DeviceId
    kind: str
    """The name that the maker gives the device, such as `NVIDIA H200`."""
    memory: int | None = field(default=None, kw_only=True, compare=False, repr=False)
    """The memory of the device in bytes; None if unknown. For a CPU device, that of the machine."""

    def __str__(self) -> str:
        return str(self.id)


class DeviceLink(NamedTuple):
    """The connection between two devices."""

    one: str
    other: str
    how: str


@dataclass(frozen=True)
class Node:
    """A machine of a cluster."""

    name: str
    cores: int = 1
    """The number of CPU cores that instances may use there."""
    memory: int | None = None
    """The memory of the machine in bytes; None if unknown."""


@dataclass(frozen=True)
class Cluster:
    """The hardware a strategy may use."""

    devices: tuple[Device, ...]
    cores: int = 1
    """The number of CPU cores that this process may use."""
    memory: int | None = None
    """The memory of the machine in bytes; None if unknown."""
    links: tuple[DeviceLink, ...] = ()
    """The connections between GPUs: NVLink, or the level of PCIe that joins them."""
    nodes: tuple[Node, ...] = ()
    """The machines of a cluster; empty for this machine alone."""
    launch: Launch | None = None
    """How instances run on the cluster. None if each strategy decides that or, with `nodes`, if
    plans are made for the cluster to look at, and cannot run."""
    notes: tuple[str, ...] = ()
    """Lines about the cluster that every plan for it prints."""

    @staticmethod
    def local() -> Cluster:
        """Describe the devices that JAX sees in this process, and their machine."""
        local, memory = jax.local_devices(), host_memory()
        devices = tuple(Device(id_of(d), d.device_kind, memory=_memory(d, memory)) for d in local)
        return Cluster(devices, usable_cores(), memory, _links([id_of(d) for d in local]))

    @property
    def launch_of_nodes(self) -> Launch | None:
        """How instances run on its nodes; None if it has neither nodes nor a launcher."""
        return self.launch or (ON_NODES if self.nodes else None)

    def __str__(self) -> str:
        """Return all devices as text, with those of equal nodes together."""
        alike: dict[tuple[tuple[str, str], ...], list[str]] = {}
        for node, mine in itertools.groupby(self.devices, key=lambda device: device.id.node):
            about = ((str(replace(device.id, node="")), device.kind) for device in mine)
            alike.setdefault(tuple(about), []).append(node)
        return ", ".join(_devices_text(nodes, about) for about, nodes in alike.items())

    def first(self, count: int | None, asked: str) -> Cluster:
        """Return a cluster of the first `count` devices, or of all if `count` is None.

        An error begins with `asked`, the strategy or command that wants the devices.
        """
        if count is not None and not 1 <= count <= len(self.devices):
            raise PlanError(
                f"{asked} was asked for {count} devices, but the devices are {self}. "
                f"Choose at least 1 and at most {len(self.devices)} devices."
            )
        return replace(self, devices=self.devices[:count])


def _devices_text(nodes: Sequence[str], about: Sequence[tuple[str, str]]) -> str:
    """Return the devices of equal nodes as text; `about` has each device's name and kind."""
    if not any(nodes):
        return ", ".join(f"{name} ({kind})" for name, kind in about)
    kinds = itertools.groupby(about, key=lambda device: device[1])
    devices = [f"{names_text(name for name, _ in run)} ({kind})" for kind, run in kinds]
    return f"{names_text(nodes)} with {', '.join(devices)}" + " each" * (len(nodes) > 1)


def hardware() -> dict[str, Any]:
    """Describe the hardware of this process, for the record of a run."""
    devices = [f"{id_of(device)} ({device.device_kind})" for device in jax.local_devices()]
    return {"devices": devices, "cores": usable_cores(), "processor": processor()}


def host_memory() -> int | None:
    """Return the memory of this machine in bytes; None if that is unknown."""
    try:
        with open("/proc/meminfo") as lines:
            return next(int(x.split()[1]) * 1024 for x in lines if x.startswith("MemTotal"))
    except (OSError, StopIteration):
        return None


def share_cores(parts: int) -> None:
    """Let JAX simulate several CPU devices, so that equal parts of the work share the cores.

    The number of devices is the greatest that divides both `parts` and the number of cores. A
    single CPU device would run one small program at a time, and leave the other cores mostly idle.
    Call this before JAX starts. It does nothing for one part, or if the user has set the number of
    devices.
    """
    chosen = "host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if parts < 2 or chosen or jax.config.values["jax_num_cpu_devices"] > 0:
        return
    with contextlib.suppress(RuntimeError):  # JAX has started, so its devices are fixed
        jax.config.update("jax_num_cpu_devices", math.gcd(parts, usable_cores()))


def find_devices(ids: Iterable[DeviceId]) -> list[Any]:
    """Return the JAX devices with these ids, or the first device of this process if `ids` is empty.

    The CPU can be named even on a machine with an accelerator, for example for small networks. For
    the id of a slice, return the first device: a process on a slice sees the slice as that device.
    """
    known = {id_of(d): d for d in jax.local_devices()}
    first = next(iter(known))
    wanted = [first if device.slice else device for device in map(_of_this_node, ids)] or [first]
    if any(device.is_host and device not in known for device in wanted):
        with contextlib.suppress(RuntimeError):  # JAX was told to leave out the CPU
            known |= {id_of(d): d for d in jax.local_devices(backend=HOST)}
    if absent := [device for device in wanted if device not in known]:
        raise ValueError(unknown("device", str(absent[0]), map(str, known)))
    return [known[device] for device in wanted]


def id_of(device: Any) -> DeviceId:
    """Return the id of a JAX device."""
    return DeviceId(device.platform, device.id)


def _of_this_node(device: DeviceId) -> DeviceId:
    """Drop the node from an id, after checking that it is this machine."""
    if device.node not in ("", this := os.environ.get(NODE) or platform.node()):
        raise ValueError(
            f"{device} is a device of the node `{device.node}`, but this node is `{this}`: use "
            f"devices of this node, such as `cpu:0`, or name the cluster that has it (`cluster`)."
        )
    return replace(device, node="")


def _memory(device: Any, of_host: int | None) -> int | None:
    """Return a device's total memory in bytes. JAX knows only what this process may take of it."""
    if device.platform == HOST:
        return of_host
    with contextlib.suppress(nvml.NvmlError):
        if uuid := gpu_uuid(device.local_hardware_id):
            return nvml.gpu(uuid).memory
    return (device.memory_stats() or {}).get("bytes_limit")


def _links(ids: Iterable[DeviceId]) -> tuple[DeviceLink, ...]:
    """Return the connections between all pairs of NVIDIA GPUs."""
    uuids = {str(device): gpu_uuid(device.index) for device in ids if is_gpu(device)}
    links: list[DeviceLink] = []
    with contextlib.suppress(nvml.NvmlError):
        for one, other in itertools.combinations(uuids, 2):
            if (first := uuids[one]) and (second := uuids[other]):
                links.append(DeviceLink(one, other, nvml.link(first, second)))
    return tuple(links)


def processor() -> str:
    """Return the model name of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
