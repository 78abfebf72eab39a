"""A description of this machine's hardware and how each device can be cut, as text or JSON."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import jax

from hocket.cluster.devices import Cluster, Device, id_of, processor
from hocket.cluster.nvidia import nvml
from hocket.cluster.nvidia.cuda import gpu_uuid, is_gpu, multiprocessors
from hocket.cluster.slices import NOT_FOR_JAX, slice_backends
from hocket.system.platforms import HOST

MOST_NAMES = 8
"""The most names of equal devices to print. Of more, only a few are named."""


def survey(*, slices: bool = True, host: bool = False) -> dict[str, Any]:
    """Describe the hardware, for JSON.

    With `slices`, MPS is started and ended on each GPU to see if it works. With `host`, the CPU is
    among the devices even if there is an accelerator.
    """
    cluster, driver = Cluster.local(), None
    with contextlib.suppress(nvml.NvmlError):
        driver = nvml.driver_version()
    devices = list(cluster.devices)
    if host and not any(device.id.is_host for device in devices):
        with contextlib.suppress(RuntimeError):  # JAX was told to leave out the CPU
            hosts = jax.local_devices(backend=HOST)
            devices += [Device(id_of(d), d.device_kind, memory=cluster.memory) for d in hosts]
    return {
        "devices": [_device(device, slices) for device in devices],
        "links": [link._asdict() for link in cluster.links],
        "cores": cluster.cores,
        "processor": processor(),
        "memory": cluster.memory,
        "jax": jax.__version__,
        "driver": driver,
    }


def as_text(machine: dict[str, Any]) -> str:
    """Write the result of `survey` as text, with equal devices described once."""
    lines = [
        f"this machine: {machine['cores']} cores ({machine['processor']}), "
        f"{size_text(machine['memory'])}",
        f"software:     jax {machine['jax']}, NVIDIA driver {machine['driver'] or 'none'}",
        *(f"{link['one']} - {link['other']}: {link['how']}" for link in machine["links"]),
    ]
    return "\n".join([*lines, *alike_text(machine["devices"])])


def alike_text(devices: Iterable[dict[str, Any]]) -> list[str]:
    """Return lines that describe devices, with equal devices described once."""
    lines, alike = list[str](), dict[tuple[str, ...], list[str]]()
    for device in devices:
        alike.setdefault((_about(device), *_ways(device)), []).append(device["name"])
    for (about, *ways), names in alike.items():
        few = names if len(names) <= MOST_NAMES else [*names[:2], "...", names[-1]]
        count = "" if few is names else f" ({len(names)} devices)"
        lines += ["", f"{', '.join(few)}{count}: {about}", "  cut into slices by", *ways]
    return lines


def _device(device: Device, slices: bool) -> dict[str, Any]:
    ordinal = device.id.index if is_gpu(device.id) else None
    backends = slice_backends() if slices else {}
    ways = {name: backend.probe(device) for name, backend in backends.items()}
    return {
        "name": str(device),
        "kind": device.kind,
        "memory": device.memory,
        "uuid": None if ordinal is None else gpu_uuid(ordinal),
        "multiprocessors": None if ordinal is None else multiprocessors(ordinal),
        # This maps each backend to the reason why it cannot cut this device, or "" if it can.
        "slices": ways | NOT_FOR_JAX if slices else {},
    }


def _about(device: dict[str, Any]) -> str:
    count = device["multiprocessors"]
    units = f", {count} multiprocessors" if count else ""
    return f"{device['kind']}, {size_text(device['memory'])}{units}"


def _ways(device: dict[str, Any]) -> list[str]:
    answers = {name: f"no: {why}" if why else "yes" for name, why in device["slices"].items()}
    return [f"    {name:<8}{answer}" for name, answer in answers.items()]


def size_text(nbytes: int | None) -> str:
    """Return the size of a memory as text."""
    return "memory unknown" if nbytes is None else f"{nbytes / 2**30:.1f} GiB"
