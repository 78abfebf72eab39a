"""The devices of this machine, by ids that a plan can hold."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import platform
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax

from hocket.cluster.nvidia import nvml
from hocket.cluster.nvidia.cuda import gpu_uuid, is_gpu
from hocket.core.plan.device_id import DeviceId
from hocket.errors import PlanError, unknown
from hocket.system.platforms import HOST


@dataclass(frozen=True)
class Device:
    """One accelerator, or one (perhaps simulated) CPU device."""

    id: DeviceId
    kind: str
    """In its maker's words: `NVIDIA H200`."""
    memory: int | None = field(default=None, kw_only=True, compare=False, repr=False)
    """In bytes, where that is known; the CPU devices of a machine share its memory."""

    def __str__(self) -> str:
        return str(self.id)


class DeviceLink(NamedTuple):
    """How two devices are joined."""

    one: str
    other: str
    how: str


@dataclass(frozen=True)
class Cluster:
    """The hardware a strategy may use."""

    devices: tuple[Device, ...]
    cores: int = 1
    """That this process may use."""
    memory: int | None = None
    """Of the machine, in bytes."""
    links: tuple[DeviceLink, ...] = ()
    """Between GPUs: NVLink, or what they have in common of PCIe."""

    @staticmethod
    def local() -> Cluster:
        """The devices that JAX sees in this process, and what they are part of."""
        found = jax.local_devices()
        memory = host_memory()
        devices = tuple(Device(id_of(d), d.device_kind, memory=_memory(d, memory)) for d in found)
        return Cluster(devices, usable_cores(), memory, _links([id_of(d) for d in found]))

    def __str__(self) -> str:
        return ", ".join(f"{device} ({device.kind})" for device in self.devices)

    def first(self, count: int | None, asked: str) -> Cluster:
        """With so many of its devices, all of them where that is None; `asked` says who asks."""
        if count is not None and not 1 <= count <= len(self.devices):
            raise PlanError(f"{asked} was asked for {count} devices; there are {self}.")
        return replace(self, devices=self.devices[:count])


def hardware() -> dict[str, Any]:
    """What this process computes on, for a record of a run."""
    devices = [f"{id_of(device)} ({device.device_kind})" for device in jax.local_devices()]
    return {"devices": devices, "cores": usable_cores(), "processor": processor()}


def usable_cores() -> int:
    """The cores that this process may use, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def host_memory() -> int | None:
    """The memory of this machine in bytes, where that can be known."""
    try:
        with open("/proc/meminfo") as lines:
            return next(int(x.split()[1]) * 1024 for x in lines if x.startswith("MemTotal"))
    except (OSError, StopIteration):
        return None


def share_cores(parts: int) -> None:
    """Let as many CPU devices as there are cores share `parts` equal parts of the work.

    A single part is left alone. Before JAX starts, and not where somebody has chosen the devices
    already. One device runs one small program at a time and leaves most of a second core idle.
    """
    chosen = "host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if parts < 2 or chosen or jax.config.values["jax_num_cpu_devices"] > 0:
        return
    with contextlib.suppress(RuntimeError):  # it has started already: one device does all of it
        jax.config.update("jax_num_cpu_devices", math.gcd(parts, usable_cores()))


def find_devices(ids: Iterable[DeviceId]) -> list[Any]:
    """The JAX devices of these ids; this process's first where there are none.

    Beside an accelerator there is always the CPU: a plan may put small networks there. A slice is
    the first device of the process that was started on it.
    """
    known = {id_of(d): d for d in jax.local_devices()}
    first = next(iter(known))
    wanted = [first if device.slice else device for device in map(_of_this_node, ids)] or [first]
    if any(device.is_host and device not in known for device in wanted):
        with contextlib.suppress(RuntimeError):  # JAX was told to use nothing but the accelerator
            known |= {id_of(d): d for d in jax.local_devices(backend=HOST)}
    if absent := [device for device in wanted if device not in known]:
        raise ValueError(unknown("device", str(absent[0]), map(str, known)))
    return [known[device] for device in wanted]


def id_of(device: Any) -> DeviceId:
    """The id of a device of JAX's."""
    return DeviceId(device.platform, device.id)


def _of_this_node(device: DeviceId) -> DeviceId:
    """A device without its node, which must be this one."""
    if device.node not in ("", platform.node()):
        raise ValueError(
            f"{device} is a device of the node `{device.node}`, and this is `{platform.node()}`: "
            f"use devices of this machine, without a node."
        )
    return replace(device, node="")


def _memory(device: Any, of_host: int | None) -> int | None:
    """What a device has in all; JAX knows what it may take of it."""
    if device.platform == HOST:
        return of_host
    with contextlib.suppress(nvml.NvmlError):
        if uuid := gpu_uuid(device.local_hardware_id):
            return nvml.gpu(uuid).memory
    return (device.memory_stats() or {}).get("bytes_limit")


def _links(ids: Iterable[DeviceId]) -> tuple[DeviceLink, ...]:
    """Between every two GPUs of NVIDIA's."""
    uuids = {str(device): gpu_uuid(device.index) for device in ids if is_gpu(device)}
    found: list[DeviceLink] = []
    with contextlib.suppress(nvml.NvmlError):
        for one, other in itertools.combinations(uuids, 2):
            if (first := uuids[one]) and (second := uuids[other]):
                found.append(DeviceLink(one, other, nvml.link(first, second)))
    return tuple(found)


def processor() -> str:
    """What this machine's cores are called."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
