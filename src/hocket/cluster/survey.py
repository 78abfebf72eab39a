"""A description of this machine's hardware and how each device can be cut, as text or JSON."""

from __future__ import annotations

import contextlib
from typing import Any

import jax

from hocket.cluster.devices import Cluster, Device, processor
from hocket.cluster.nvidia import nvml
from hocket.cluster.nvidia.cuda import gpu_uuid, is_gpu, multiprocessors
from hocket.cluster.slices import NOT_FOR_JAX, slice_backends


def survey() -> dict[str, Any]:
    """Describe the hardware, for JSON. MPS is started and ended on each GPU to see if it works."""
    cluster, driver = Cluster.local(), None
    with contextlib.suppress(nvml.NvmlError):
        driver = nvml.driver_version()
    return {
        "devices": [_device(device) for device in cluster.devices],
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
        f"{_size(machine['memory'])}",
        f"software:     jax {machine['jax']}, NVIDIA driver {machine['driver'] or 'none'}",
        *(f"{link['one']} - {link['other']}: {link['how']}" for link in machine["links"]),
    ]
    alike: dict[tuple[str, ...], list[str]] = {}
    for device in machine["devices"]:
        alike.setdefault((_about(device), *_ways(device)), []).append(device["name"])
    for (about, *ways), names in alike.items():
        lines += ["", f"{', '.join(names)}: {about}", "  cut into slices by", *ways]
    return "\n".join(lines)


def _device(device: Device) -> dict[str, Any]:
    ordinal = device.id.index if is_gpu(device.id) else None
    slices = {name: backend.probe(device) for name, backend in slice_backends().items()}
    return {
        "name": str(device),
        "kind": device.kind,
        "memory": device.memory,
        "uuid": None if ordinal is None else gpu_uuid(ordinal),
        "multiprocessors": None if ordinal is None else multiprocessors(ordinal),
        # This maps each backend to the reason why it cannot cut this device, or "" if it can.
        "slices": slices | NOT_FOR_JAX,
    }


def _about(device: dict[str, Any]) -> str:
    count = device["multiprocessors"]
    units = f", {count} multiprocessors" if count else ""
    return f"{device['kind']}, {_size(device['memory'])}{units}"


def _ways(device: dict[str, Any]) -> list[str]:
    answers = {name: f"no: {why}" if why else "yes" for name, why in device["slices"].items()}
    return [f"    {name:<8}{answer}" for name, answer in answers.items()]


def _size(nbytes: int | None) -> str:
    return "memory unknown" if nbytes is None else f"{nbytes / 2**30:.1f} GiB"
