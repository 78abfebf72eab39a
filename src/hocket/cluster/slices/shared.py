"""Slices of an NVIDIA GPU that take turns: processes that share it without MPS.

Only one of them computes at a time, so more slices are not faster. They are for comparison with
MPS, and for machines without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hocket.cluster.devices import Device
from hocket.cluster.nvidia import nvml
from hocket.cluster.nvidia.cuda import gpu_uuid, is_gpu, memory_share, no_mps
from hocket.cluster.slices import Opened, Slice, named
from hocket.cluster.slices.mps import gpus_of
from hocket.errors import PlanError


class Shared:
    """Cuts a GPU: one process per slice, each with its part of the memory."""

    name, at_once, one_memory = "shared", False, True

    def probe(self, device: Device) -> str:
        if not is_gpu(device.id):
            return f"it cuts NVIDIA GPUs, and this is a {device.kind}."
        if (uuid := gpu_uuid(device.id.index)) is None:
            return f"it cuts NVIDIA GPUs, and the CUDA driver does not know {device}."
        return nvml.not_shared(uuid)

    def layout(self, device: Device, count: int, share: int | None) -> tuple[Slice, ...]:
        if share not in (None, 100):
            raise PlanError(
                f"`shared` slices of {device} take turns on the whole GPU, so a share of {share} % "
                f"is not possible. Leave out `share`, or use `cut=mps`."
            )
        return tuple(named(device, self.name, i, count, 100) for i in range(count))

    def open(self, slices: Sequence[Slice]) -> SharedSlices:
        return SharedSlices(slices)


class SharedSlices(Opened):
    """Slices that share their GPUs. Nothing has to be started for them."""

    def __init__(self, slices: Sequence[Slice]) -> None:
        self._gpus = gpus_of(slices)
        self._free = {gpu: nvml.free_part(uuid) for gpu, uuid in self._gpus.items()}

    def env(self, part: Slice) -> Mapping[str, str | None]:
        gpu = {"CUDA_VISIBLE_DEVICES": self._gpus[part.of]}
        return {**no_mps(), **gpu, **memory_share(part.count, self._free[part.of])}

    def verify(self, part: Slice, seen: Mapping[str, Any]) -> str:
        expected = self._gpus[part.of]
        return "" if seen["uuid"] == expected else f"it is on {seen['uuid']}, not on {expected}."


BACKEND = Shared()
