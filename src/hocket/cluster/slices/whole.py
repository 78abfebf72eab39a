"""The whole device as its only slice, for one instance or where nothing else is possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hocket.cluster.devices import Device
from hocket.cluster.nvidia.cuda import gpu_uuid, instance_uuid, is_gpu
from hocket.cluster.slices import Opened, Slice, named
from hocket.core.plan.device_id import DeviceId
from hocket.errors import PlanError


class Whole(Opened):
    """Gives the whole device to one process, which sees no other device of its kind."""

    name, at_once, one_memory = "whole", False, True

    def probe(self, device: Device) -> str:
        return ""

    def layout(self, device: Device, count: int, share: int | None) -> tuple[Slice, ...]:
        if count != 1 or share not in (None, 100):
            raise PlanError(
                f"the whole of {device} is 1 slice of 100 %, but {count} of {share or 100} % were "
                f"requested: use slices=1 without a share, or another `cut`."
            )
        return (named(device, self.name, 0, 1, 100),)

    def open(self, slices: Sequence[Slice]) -> Whole:
        return self

    def env(self, part: Slice) -> Mapping[str, str | None]:
        uuid = _uuid(part)
        is_one_of_several = gpu_uuid(1) is not None
        return {"CUDA_VISIBLE_DEVICES": uuid} if uuid and is_one_of_several else {}

    def verify(self, part: Slice, seen: Mapping[str, Any]) -> str:
        is_kind, uuid = DeviceId.read(seen["device"]).kind == part.id.kind, _uuid(part)
        if is_kind and uuid in (None, seen["instance"], seen["uuid"]):
            return ""
        return f"its process is on {seen['uuid'] or seen['device']}, not on {uuid or part.of}."


def _uuid(part: Slice) -> str | None:
    """Return the UUID of a slice's GPU, or of the MIG instance if this process sees only that."""
    ordinal = part.id.index
    return (instance_uuid(ordinal) or gpu_uuid(ordinal)) if is_gpu(part.id) else None


BACKEND = Whole()
