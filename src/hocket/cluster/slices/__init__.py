"""Slices: parts of a device. One process runs on each, and other packages see a slice as a device.

    cpu.py     slices with some of the cores each
    whole.py   the whole device as its only slice
    shared.py  processes that take turns on a GPU
    mps.py     processes that run on a GPU at the same time
    mig.py     instances that the administrator of a GPU has made

A *backend* is a way to cut a device. The id of a slice says everything about it:
`gpu:0/mps:1of4@50%` is the second of four parts of `gpu:0`, and may use at most half of it. Only
this package interprets the text `mps:1of4@50%`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from hocket.cluster.devices import Device, id_of
from hocket.cluster.nvidia.cuda import gpu_uuid, instance_uuid, multiprocessors
from hocket.core.plan.device_id import DeviceId
from hocket.errors import PlanError, unknown
from hocket.system.registry import Registry

AUTO = "auto"
NOT_FOR_JAX = {
    "green": "XLA does not support green contexts: it computes in the primary context, which also "
    "runs on the multiprocessors that a green context has reserved.",
}
"""Slice backends that do not work with JAX, each with the reason."""


@dataclass(frozen=True)
class Slice(Device):
    """One of `count` parts of the device `of`; `index` is its number, from 0.

    The process on a slice may use at most `share` percent of the device.
    """

    backend: str
    index: int
    count: int
    share: int
    note: str = ""
    """How the slice differs from the request, and why; "" if it does not."""

    @property
    def of(self) -> DeviceId:
        return self.id.whole

    @property
    def way(self) -> Backend:
        """The backend that cuts the device."""
        return slice_backends()[self.backend]


class Opened(Protocol):
    """Slices that one backend has prepared for use. It may have started a daemon for them."""

    def env(self, part: Slice) -> Mapping[str, str | None]:
        """Return the environment variables that a slice's process needs before it imports jax.

        A variable whose value is None must be unset.
        """
        ...

    def verify(self, part: Slice, seen: Mapping[str, Any]) -> str:
        """Return what is wrong with a slice, as its process sees it; "" if nothing is wrong.

        `seen` is what `seen_here` returned in that process.
        """
        ...

    def close(self) -> None:
        """End whatever was started for the slices. A second call does nothing."""


class Backend(Protocol):
    """One way to cut a device."""

    name: str
    at_once: bool
    """True if processes on slices of one device run at the same time."""
    one_memory: bool
    """True if processes on slices of one device can open each other's memory on that device."""

    def probe(self, device: Device) -> str:
        """Return the reason why the backend cannot cut this device; "" if it can."""
        ...

    def layout(self, device: Device, count: int, share: int | None) -> tuple[Slice, ...]:
        """Describe `count` parts of a device, each with at most `share` percent of it."""
        ...

    def open(self, slices: Sequence[Slice]) -> Opened:
        """Start what the processes of these slices need."""
        ...


def slice_backends() -> Mapping[str, Backend]:
    """Return all backends by name, from the files of this folder."""
    return _BACKENDS.built_in


_BACKENDS = Registry("slice backend", __name__, "BACKEND")


def split(
    device: Device, count: int, share: int | None = None, backend: str = AUTO
) -> tuple[Slice, ...]:
    """Cut a device into `count` parts, each with at most `share` percent of it.

    By default a CPU is cut by cores, and a GPU by MPS. If that is not possible here, the result is
    the whole device in one part, whose `note` says why.
    """
    backends = slice_backends()
    if count < 1 or (share is not None and not 1 <= share <= 100):
        raise PlanError(
            f"{device} cannot be cut into {count} slices of {100 if share is None else share} %: "
            f"use at least 1 slice, with a share of 1 to 100 %."
        )
    if backend in NOT_FOR_JAX:
        raise PlanError(f"{device} cannot be cut by `{backend}`: {NOT_FOR_JAX[backend]}")
    if backend not in (AUTO, *backends):
        raise PlanError(unknown("slice backend", backend, (AUTO, *backends)))
    chosen = backend if backend != AUTO else "cpu" if device.id.is_host else "mps"
    if count == 1 and backend == AUTO and share in (None, 100):
        chosen = "whole"
    if not (why := backends[chosen].probe(device)):
        return backends[chosen].layout(device, count, share)
    if backend != AUTO:
        raise PlanError(f"{device} cannot be cut by `{backend}`: {why}")
    note = f"{device} is used whole, not as {count} slices: {why}"
    return (named(device, "whole", 0, 1, 100, note),)


def named(
    device: Device, backend: str, index: int, count: int, share: int, note: str = ""
) -> Slice:
    """Return a slice whose id is made of the device's id, the backend, index, count and share."""
    id = replace(device.id, slice=f"{backend}:{index}of{count}@{share}%")
    return Slice(id, device.kind, backend, index, count, share, note)


def read_slice(device: DeviceId) -> Slice | None:
    """Return the slice with this id; None for a whole device."""
    if not device.slice:
        return None
    match = re.fullmatch(r"(\w+):(\d+)of(\d+)@(\d+)%", device.slice)
    if match is None:
        raise PlanError(
            f"`{device.slice}` of {device} is no slice: write {device.whole}/BACKEND:"
            f"INDEXofCOUNT@SHARE%, as in {device.whole}/mps:1of4@50%."
        )
    backend, *numbers = match.groups()
    if backend not in slice_backends():
        raise PlanError(unknown("slice backend", backend, slice_backends(), f"of {device}"))
    index, count, share = map(int, numbers)
    return Slice(device, "", backend, index, count, share)


def run_as_one(device: DeviceId) -> bool:
    """Return True for a slice whose backend has both `at_once` and `one_memory`.

    Processes on such slices run at the same time and can open each other's memory, so they may wait
    for each other on the device. A fault in one affects all.
    """
    part = read_slice(device)
    return part is not None and part.way.at_once and part.way.one_memory


class Slices:
    """The slices in a list of devices, prepared so that processes can run on them until `close`.

        with closing(Slices(devices)) as slices:
            Popen(..., env=changed(os.environ, slices.env(device)))

    Devices that are not slices are ignored.
    """

    def __init__(self, devices: Iterable[DeviceId]) -> None:
        parts = [part for device in dict.fromkeys(devices) if (part := read_slice(device))]
        self.seen: dict[DeviceId, dict[str, Any]] = {}
        """Each process's result of `seen_here`. Its entry `verified` says if the slice is right."""
        self._opened: dict[str, Opened] = {}
        self._parts = {part.id: part for part in parts}
        try:
            for backend in dict.fromkeys(part.backend for part in parts):
                mine = [part for part in parts if part.backend == backend]
                self._opened[backend] = mine[0].way.open(mine)
        except BaseException:
            self.close()
            raise

    def env(self, device: DeviceId) -> dict[str, str | None]:
        """Return the environment variables for a process on this device; see `Opened.env`."""
        part = self._parts.get(device)
        return dict(self._opened[part.backend].env(part)) if part else {}

    def verify(self, device: DeviceId, seen: Mapping[str, Any]) -> None:
        """Record what a process has `seen` of its slice, and raise if the slice is not right."""
        part = self._parts.get(device)
        if part is None:
            return
        wrong = self._opened[part.backend].verify(part, seen)
        self.seen[device] = {**seen, "verified": not wrong}
        if wrong:
            raise PlanError(f"the slice {device} was not set up as planned: {wrong}")

    def close(self) -> None:
        """End whatever was started for the slices."""
        for opened in self._opened.values():
            opened.close()


def changed(environment: Mapping[str, str], by: Mapping[str, str | None]) -> dict[str, str]:
    """Return a copy of environment variables with the changes in `by`. None unsets a variable."""
    kept = {name: value for name, value in environment.items() if name not in by}
    return kept | {name: value for name, value in by.items() if value is not None}


def seen_here() -> dict[str, Any]:
    """Return what JAX and the driver say about this process's slice; `Slices.verify` checks it."""
    import jax

    device = jax.local_devices()[0]
    is_gpu = device.platform == "gpu"
    return {
        "pid": os.getpid(),
        "device": str(id_of(device)),
        "kind": device.device_kind,
        "cores": sorted(os.sched_getaffinity(0)),
        "uuid": gpu_uuid(device.local_hardware_id) if is_gpu else None,
        "instance": instance_uuid(device.local_hardware_id) if is_gpu else None,
        "multiprocessors": multiprocessors(device.local_hardware_id) if is_gpu else None,
        "memory": (device.memory_stats() or {}).get("bytes_limit"),
    }
