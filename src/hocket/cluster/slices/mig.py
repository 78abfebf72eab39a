"""Slices of an NVIDIA GPU that its administrator has cut into MIG instances.

Hocket uses existing instances and never makes any: that needs privileges and an idle GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hocket.cluster.devices import Device
from hocket.cluster.nvidia import nvml
from hocket.cluster.nvidia.cuda import gpu_uuid, is_gpu, memory_share, no_mps
from hocket.cluster.slices import Opened, Slice, named
from hocket.core.plan.device_id import DeviceId
from hocket.errors import PlanError

ADMINISTRATOR = "`nvidia-smi -i 0 -mig 1`, then `nvidia-smi mig -i 0 -cgi 3g.71gb,3g.71gb -C`"


class Mig:
    """Cuts a GPU: one process per slice, on an existing MIG instance."""

    name, at_once, one_memory = "mig", True, False

    def probe(self, device: Device) -> str:
        if not is_gpu(device.id):
            return f"it cuts NVIDIA GPUs, and this is a {device.kind}."
        try:
            if instances(device.id):
                return ""
        except nvml.NvmlError as error:
            return f"its MIG instances cannot be listed: {error}"
        return (
            f"{device} has no MIG instances, and hocket makes none. An administrator can, for "
            f"instance with {ADMINISTRATOR} (`nvidia-smi mig -lgip` lists its profiles)."
        )

    def layout(self, device: Device, count: int, share: int | None) -> tuple[Slice, ...]:
        names = [name for _, name in instances(device.id)]
        if share is not None:
            raise PlanError(
                f"the size of a MIG instance of {device} is fixed, so it cannot be {share} %: "
                f"leave out `share`. Its instances are {', '.join(names)}."
            )
        if count > len(names):
            raise PlanError(
                f"{device} was to be cut into {count} slices, but has {len(names)} MIG instances: "
                f"{', '.join(names)}. Use at most {len(names)}."
            )
        return tuple(named(device, self.name, i, count, 100) for i in range(count))

    def open(self, slices: Sequence[Slice]) -> MigSlices:
        return MigSlices(slices)


class MigSlices(Opened):
    """MIG instances in use as slices: slice `i` of a GPU is the `i`-th MIG instance of that GPU."""

    def __init__(self, slices: Sequence[Slice]) -> None:
        self._uuids = {part.id: instances(part.of)[part.index][0] for part in slices}

    def env(self, part: Slice) -> Mapping[str, str | None]:
        mine = {"CUDA_VISIBLE_DEVICES": self._uuids[part.id]}
        return {**no_mps(), **mine, **memory_share(1)}

    def verify(self, part: Slice, seen: Mapping[str, Any]) -> str:
        mine = self._uuids[part.id]
        # Drivers before 470 name an instance MIG-GPU-..., unlike CUDA. Then any GPU is accepted.
        is_mine = seen["instance"] == mine or (mine.startswith("MIG-GPU-") and seen["uuid"])
        where = seen["instance"] or seen["uuid"] or seen["device"]
        return "" if is_mine else f"its process is on {where}, not on {mine}."


def instances(gpu: DeviceId) -> list[tuple[str, str]]:
    """Return the UUID and name of each MIG instance of a GPU."""
    uuid = gpu_uuid(gpu.index)
    if uuid is None:
        raise nvml.NvmlError(f"the CUDA driver does not know {gpu}.")
    return nvml.mig_instances(uuid)


BACKEND = Mig()
