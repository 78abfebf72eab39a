"""The devices of this machine, by names that a plan can hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jax

from hocket.errors import unknown


@dataclass(frozen=True)
class Device:
    """One accelerator, or one (perhaps simulated) CPU device: `cpu:0`, `gpu:1`."""

    name: str
    kind: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Cluster:
    """The hardware a strategy may use."""

    devices: tuple[Device, ...]

    def __str__(self) -> str:
        return ", ".join(f"{device.name} ({device.kind})" for device in self.devices)


def local_cluster() -> Cluster:
    """The devices that JAX sees in this process."""
    return Cluster(tuple(Device(_name(d), d.device_kind) for d in jax.local_devices()))


def find_devices(names: Iterable[str]) -> list[Any]:
    """The JAX devices of these names; this process's first where none is named."""
    known = {_name(d): d for d in jax.local_devices()}
    names = list(names) or list(known)[:1]
    for name in names:
        if name not in known:
            raise ValueError(unknown("device", name, known))
    return [known[name] for name in names]


def _name(device: Any) -> str:
    return f"{device.platform}:{device.id}"
