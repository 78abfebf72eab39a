"""How busy a GPU was over some time, from the counters of its multiprocessors.

The utilization that `nvidia-smi` shows is the time in which anything ran at all: one warp counts as
much as a full GPU. These counters (NVML's GPM, from Hopper on) tell how much of the GPU was used.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from typing import Any

from hocket.cluster.nvidia import nvml
from hocket.cluster.nvidia.cuda import gpu_uuid, is_gpu
from hocket.core.plan.device_id import DeviceId

METRICS = {"sm_active": 2, "sm_occupancy": 3, "tensor": 5, "dram": 10, "fp32": 12}
"""The metrics, each with its NVML id (`nvmlGpmMetricId_t`). They are the use of multiprocessors,
warps, tensor cores, memory bandwidth and float32 units, in percent of what the GPU has."""
VERSION = 1
MOST = 512
"""The fixed length of the metrics array in a request. NVML reads only the first `count` entries."""
SHORTEST = 0.1
"""The least number of seconds between two samples that gives meaningful counters."""


class _GpmSample(ctypes.Structure):
    """A sample of the GPU's counters, as an opaque type of NVML."""


class _MetricInfo(ctypes.Structure):
    _fields_ = (
        ("short", ctypes.c_char_p),
        ("long", ctypes.c_char_p),
        ("unit", ctypes.c_char_p),
    )


class _Metric(ctypes.Structure):
    _fields_ = (
        ("id", ctypes.c_uint),
        ("code", ctypes.c_uint),
        ("value", ctypes.c_double),
        ("info", _MetricInfo),
    )


class _Request(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint),
        ("count", ctypes.c_uint),
        ("first", ctypes.POINTER(_GpmSample)),
        ("second", ctypes.POINTER(_GpmSample)),
        ("metrics", _Metric * MOST),
    )


class _Support(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint), ("is_supported", ctypes.c_uint))


class GpuActivity:
    """A context that measures how busy a GPU is, in percent. If that fails, `why` has the reason.

        with GpuActivity("gpu:0") as activity:
            ...
        print(activity.report())    # {"sm_active": 61.2, "sm_occupancy": 22.0, "dram": 8.1, ...}

    All processes on the GPU are counted together.
    """

    def __init__(self, device: str = "gpu:0") -> None:
        self.why = ""
        self.seconds = 0.0
        self._device = DeviceId.read(device)
        self._samples: list[Any] = []
        self._averages: dict[str, float] = {}

    def __enter__(self) -> GpuActivity:
        self._try(self._begin)
        return self

    def __exit__(self, *_: object) -> None:
        if not self.why:
            self._try(self._end)
        for sample in self._samples:
            with contextlib.suppress(nvml.NvmlError):
                nvml.call("nvmlGpmSampleFree", sample)
        self._samples = []

    def report(self) -> dict[str, float]:
        """Return the average of each counter in percent; {} if measuring failed (see `why`)."""
        return dict(self._averages)

    def __str__(self) -> str:
        numbers = ", ".join(f"{name} {x:.1f} %" for name, x in self._averages.items())
        return numbers or f"unknown: {self.why}"

    def _try(self, step: Any) -> None:
        try:
            step()
        except nvml.NvmlError as error:
            self.why = str(error)

    def _begin(self) -> None:
        uuid = gpu_uuid(self._device.index) if is_gpu(self._device) else None
        if uuid is None:
            raise nvml.NvmlError(f"{self._device} is no GPU that the CUDA driver knows.")
        self._handle = nvml.handle_of(uuid)
        support = _Support(VERSION, 0)
        nvml.call("nvmlGpmQueryDeviceSupport", self._handle, ctypes.byref(support))
        if not support.is_supported:
            raise nvml.NvmlError(
                f"{nvml.gpu(uuid).name} has no GPM counters: they need Hopper or newer."
            )
        for _ in range(2):
            sample = ctypes.POINTER(_GpmSample)()
            nvml.call("nvmlGpmSampleAlloc", ctypes.byref(sample))
            self._samples.append(sample)
        self._sample(0)
        self._since = time.monotonic()

    def _end(self) -> None:
        time.sleep(max(0.0, SHORTEST - (time.monotonic() - self._since)))
        self._sample(1)
        self.seconds = time.monotonic() - self._since
        request = _Request(VERSION, len(METRICS), *self._samples)
        for metric, number in zip(request.metrics, METRICS.values(), strict=False):
            metric.id = number
        nvml.call("nvmlGpmMetricsGet", ctypes.byref(request))
        answers = zip(METRICS, request.metrics, strict=False)
        self._averages = {name: metric.value for name, metric in answers if metric.code == 0}
        if not self._averages:
            raise nvml.NvmlError("the driver gave no value for any counter.")

    def _sample(self, which: int) -> None:
        nvml.call("nvmlGpmSampleGet", self._handle, self._samples[which])
