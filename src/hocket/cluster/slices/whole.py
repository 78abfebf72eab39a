"""The whole device as its only slice: for one instance, and where nothing else can be had."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hocket.cluster.devices import Device
from hocket.cluster.nvidia.cuda import gpu_uuid, instance_uuid, ordinal_of
from hocket.cluster.slices import Slice, named
from hocket.errors import PlanError


class Whole:
    """One process, which sees this device and no other of its kind."""

    name = "whole"

    def probe(self, device: Device) -> str:
        del device
        return ""

    def layout(self, device: Device, count: int, share: int | None) -> tuple[Slice, ...]:
        if count != 1 or share not in (None, 100):
            raise PlanError(
                f"the whole of {device} is 1 slice of 100 %, and {count} of {share or 100} % were "
                f"asked for: use slices=1 without a share, or another `cut`."
            )
        return (named(device, self.name, 0, 1, 100),)

    def open(self, slices: Sequence[Slice]) -> Whole:
        del slices
        return self

    def env(self, part: Slice) -> Mapping[str, str | None]:
        uuid = _uuid(part)
        is_one_of_several = gpu_uuid(1) is not None
        return {"CUDA_VISIBLE_DEVICES": uuid} if uuid and is_one_of_several else {}

    def verify(self, part: Slice, seen: Mapping[str, Any]) -> str:
        kind, uuid = part.of.partition(":")[0], _uuid(part)
        is_kind = seen["device"].partition(":")[0] == kind
        if is_kind and uuid in (None, seen["instance"], seen["uuid"]):
            return ""
        return f"its process is on {seen['uuid'] or seen['device']}, not on {uuid or part.of}."

    def close(self) -> None:
        pass


def _uuid(part: Slice) -> str | None:
    """Of the GPU that a slice is, or of the MIG instance that is all this process sees of one."""
    if not part.of.startswith("gpu:"):
        return None
    ordinal = ordinal_of(part.of)
    return instance_uuid(ordinal) or gpu_uuid(ordinal)


BACKEND = Whole()
