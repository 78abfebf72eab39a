"""Slices of a CPU: processes with some of the cores each, for tests, laptops, small machines."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from hocket.cluster.devices import Device
from hocket.cluster.slices import Opened, Slice, named
from hocket.errors import PlanError
from hocket.system.cores import CORES, part_of_cores, usable_cores
from hocket.system.platforms import HOST


class Cpu:
    """Cuts a CPU: one process per slice, with its share of the cores."""

    name, at_once, one_memory = "cpu", True, False

    def probe(self, device: Device) -> str:
        if not device.id.is_host:
            return f"it cuts CPUs, and this is a {device.kind}."
        return "" if sys.platform == "linux" else "only Linux can keep processes on cores."

    def layout(self, device: Device, count: int, share: int | None) -> tuple[Slice, ...]:
        even = max(1, 100 // count)
        if share not in (None, even):
            raise PlanError(
                f"slices of {device} get an even share of the cores each, so a share of {share} % "
                f"is not possible: leave out `share`."
            )
        cores = usable_cores()
        note = f"{count} slices of {device} take turns on {cores} cores" if count > cores else ""
        return tuple(named(device, self.name, i, count, even, note) for i in range(count))

    def open(self, slices: Sequence[Slice]) -> CpuSlices:
        return CpuSlices(slices)


class CpuSlices(Opened):
    """The cores of this process, divided among slices. Slices share cores if there are too few."""

    def __init__(self, slices: Sequence[Slice]) -> None:
        self._cores = {part.id: part_of_cores(i, len(slices)) for i, part in enumerate(slices)}

    def env(self, part: Slice) -> Mapping[str, str | None]:
        cores = self._cores[part.id]
        # Without PJRT_NPROC, XLA would start a thread for every core, though it may use only a few.
        return {
            CORES: ",".join(map(str, cores)),
            "PJRT_NPROC": str(len(cores)),
            "JAX_PLATFORMS": HOST,
        }

    def verify(self, part: Slice, seen: Mapping[str, Any]) -> str:
        expected = self._cores[part.id]
        return "" if seen["cores"] == expected else f"cores {seen['cores']}, not {expected}."


BACKEND = Cpu()
