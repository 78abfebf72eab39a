"""What an NVIDIA GPU was busy with between two moments: NVML's GPM counters (Hopper and later).

with Counters() as counters:
    ...
print(counters.values)      # percent of the peak, by name
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_double, c_uint, c_void_p
from typing import Any, Self

METRICS = {"SMs busy": 2, "SM occupancy": 3, "integer": 4, "tensor": 5, "DRAM": 10, "float32": 12}
"""NVML's numbers for what is measured."""


class Metric(ctypes.Structure):
    _fields_ = [
        ("id", c_uint), ("error", c_uint), ("value", c_double), ("names", c_void_p * 3),
    ]  # fmt: skip


class Request(ctypes.Structure):
    _fields_ = [
        ("version", c_uint), ("count", c_uint), ("before", c_void_p), ("after", c_void_p),
        ("metrics", Metric * 512),
    ]  # fmt: skip


class Counters:
    """Counts while it is entered. Raises OSError where there is no such GPU or no NVML."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self._call("nvmlInit_v2")
        self._device, self._before, self._after = c_void_p(), c_void_p(), c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", 0, byref(self._device))
        for sample in (self._before, self._after):
            self._call("nvmlGpmSampleAlloc", byref(sample))

    def __enter__(self) -> Self:
        self._call("nvmlGpmSampleGet", self._device, self._before)
        return self

    def __exit__(self, *_: object) -> None:
        self._call("nvmlGpmSampleGet", self._device, self._after)
        request = Request(1, len(METRICS), self._before, self._after)
        for i, number in enumerate(METRICS.values()):
            request.metrics[i].id = number
        self._call("nvmlGpmMetricsGet", byref(request))
        self.values = {
            name: round(request.metrics[i].value, 1)
            for i, name in enumerate(METRICS)
            if not request.metrics[i].error
        }

    def _call(self, name: str, *args: Any) -> None:
        status = getattr(self._nvml, name)(*args)
        if status:
            raise OSError(f"NVML's {name} answers {status}")
