"""Slices of an NVIDIA GPU under MPS: processes that run on it at the same time.

The share of a slice limits the multiprocessors that its process may use. It reserves none.
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
"""The most clients that an MPS server accepts on one GPU."""
NEAR = 0.03
"""The difference allowed between the share of a slice and the fraction of multiprocessors that its
process sees. The two differ because multiprocessors come in groups."""


class Mps:
    """Cuts a GPU: one process per slice, all of them clients of a private MPS server."""

    name, at_once, one_memory = "mps", True, True

    def probe(self, device: Device) -> str:
        if not is_gpu(device.id):
            return f"it cuts NVIDIA GPUs, and this is a {device.kind}."
        if why := mps.missing():
            return why
        if (uuid := gpu_uuid(device.id.index)) is None:
            return f"it cuts NVIDIA GPUs, and the CUDA driver does not know {device}."
        return nvml.not_shared(uuid) or mps.refuses(uuid)

    def layout(self, device: Device, count: int, share: int | None) -> tuple[Slice, ...]:
        if count > MOST:
            raise PlanError(
                f"{device} was to be cut into {count} slices, but MPS serves {MOST} at most. "
                f"Use fewer slices."
            )
        # Twice an even share, as NVIDIA advises, so that a busy process can use what others leave.
        each = share or min(100, 200 // count)
        return tuple(named(device, self.name, i, count, each) for i in range(count))

    def open(self, slices: Sequence[Slice]) -> MpsSlices:
        return MpsSlices(slices)


class MpsSlices:
    """An MPS daemon for all GPUs of some slices."""

    def __init__(self, slices: Sequence[Slice]) -> None:
        self._parts = slices
        self._gpus = gpus_of(slices)
        # The slices divide the memory that other processes have left.
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
        """Check that a slice is on its GPU, is a client of the daemon, and has its share.

        In a container, a process's id may differ from the id that the daemon lists for it. But the
        daemon has no other clients, so if it lists as many as there are slices, all are connected.
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
    """Return the GPUs that slices are parts of, with their UUIDs."""
    uuids = {part.of: gpu_uuid(part.of.index) for part in slices}
    known = {gpu: uuid for gpu, uuid in uuids.items() if uuid is not None}
    if len(known) < len(uuids):
        raise PlanError(
            f"the plan has slices of {', '.join(map(str, uuids))}, but the CUDA driver of this "
            f"process knows only {', '.join(map(str, known)) or 'none'}. Check "
            f"CUDA_VISIBLE_DEVICES."
        )
    return known


BACKEND = Mps()
