"""Slices of an NVIDIA GPU under MPS: processes that run on it at the same time.

A slice's share is a ceiling on the multiprocessors its process may use, and no reservation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hocket.cluster.devices import Device
from hocket.cluster.nvidia import mps, nvml
from hocket.cluster.nvidia.cuda import gpu_uuid, is_gpu, memory_share, multiprocessors, no_mps
from hocket.cluster.slices import Slice, named
from hocket.core.plan.device_id import DeviceId
from hocket.errors import PlanError

MOST = 48
"""Clients that an MPS server serves on one GPU."""
NEAR = 0.03
"""How far the multiprocessors of a slice may be from its share: they are dealt out in groups."""


class Mps:
    """One process a slice, all of them clients of an MPS server of our own."""

    name, at_once, one_memory = "mps", True, True

    def probe(self, device: Device) -> str:
        if not is_gpu(device.id):
            return f"it cuts NVIDIA GPUs, and this is a {device.kind}."
        if why := mps.missing():
            return why
        if (uuid := gpu_uuid(device.id.index)) is None:
            return f"it cuts NVIDIA GPUs, and the CUDA driver knows no {device}."
        return nvml.not_shared(uuid) or mps.refuses(uuid)

    def layout(self, device: Device, count: int, share: int | None) -> tuple[Slice, ...]:
        if count > MOST:
            raise PlanError(f"{device} was to be cut into {count}: MPS serves {MOST} at most.")
        # Twice an even share, as NVIDIA advises: whoever is busy may use what others leave.
        each = share or min(100, 200 // count)
        return tuple(named(device, self.name, i, count, each) for i in range(count))

    def open(self, slices: Sequence[Slice]) -> MpsSlices:
        return MpsSlices(slices)


class MpsSlices:
    """An MPS daemon for all GPUs that these slices are of."""

    def __init__(self, slices: Sequence[Slice]) -> None:
        self._parts = slices
        self._gpus = gpus_of(slices)
        # A process that has taken most of the memory already leaves slices what there is.
        self._free = {gpu: nvml.free_part(uuid) for gpu, uuid in self._gpus.items()}
        self._full = {gpu: multiprocessors(gpu.index) for gpu in self._gpus}
        self._daemon = mps.Daemon(list(self._gpus.values()))

    def env(self, part: Slice) -> Mapping[str, str | None]:
        return {
            **no_mps(),
            **self._daemon.env,
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(part.share),
            "CUDA_VISIBLE_DEVICES": self._gpus[part.of],
            **memory_share(part.count, self._free[part.of]),
        }

    def verify(self, part: Slice, seen: Mapping[str, Any]) -> str:
        """On its GPU, a client of the daemon, and no wider than its share.

        The server lists its clients, which are nobody but these slices: so many are all, also
        where it numbers processes otherwise than they do themselves (in a container).
        """
        if seen["uuid"] != self._gpus[part.of]:
            return f"its process is on the GPU {seen['uuid']}, not on {self._gpus[part.of]}."
        clients, full, sees = self._daemon.clients(), self._full[part.of], seen["multiprocessors"]
        is_client = seen["pid"] in clients or len(clients) >= len(self._parts)
        is_cut = not full or not sees or abs(sees / full - part.share / 100) <= NEAR
        if is_client and is_cut:
            return ""
        return (
            f"its process {seen['pid']} sees {sees} of {full} multiprocessors, and the MPS server "
            f"has the clients {clients or 'none'}. Its log says\n{self._daemon.log()}"
        )

    def close(self) -> None:
        self._daemon.close()


def gpus_of(slices: Sequence[Slice]) -> dict[DeviceId, str]:
    """The GPUs that slices are of, and their UUIDs."""
    found = {part.of: gpu_uuid(part.of.index) for part in slices}
    known = {gpu: uuid for gpu, uuid in found.items() if uuid is not None}
    if len(known) < len(found):
        raise PlanError(
            f"the CUDA driver of this process knows {', '.join(map(str, known)) or 'none'}, of "
            f"{', '.join(map(str, found))}."
        )
    return known


BACKEND = Mps()
