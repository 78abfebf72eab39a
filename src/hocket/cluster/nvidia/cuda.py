"""The GPUs of this process as CUDA numbers them: their identity, and what a process may use.

The functions call libcuda directly, without a Python package. Only `synchronize` may create a CUDA
context.
"""

from __future__ import annotations

import ctypes
import os
import uuid
from functools import cache

from hocket.core.plan.device_id import DeviceId

MULTIPROCESSOR_COUNT = 16
"""CUDA's `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`. Under MPS, this attribute of a GPU counts only
the multiprocessors that this process may use."""
DEVICE_SHARE = 0.9
"""The fraction of a GPU's memory that XLA may take in all processes together. CUDA contexts need
the rest."""


def is_gpu(device: DeviceId) -> bool:
    """Return True if a device is a GPU. Its index is then its CUDA number in this process."""
    return device.kind == "gpu"


def gpu_uuid(ordinal: int) -> str | None:
    """Return a GPU's UUID, `GPU-...`, the same in every process; None if there is no such GPU.

    `ordinal` is CUDA's number of the GPU, which counts only the GPUs in CUDA_VISIBLE_DEVICES.
    NVML's numbers count all GPUs.
    """
    number = _uuid("cuDeviceGetUuid", ordinal) or _uuid("cuDeviceGetUuid_v2", ordinal)
    return f"GPU-{number}" if number else None


def instance_uuid(ordinal: int) -> str | None:
    """Return the UUID of the MIG instance of this process, `MIG-...`; None if it has none."""
    number = _uuid("cuDeviceGetUuid_v2", ordinal)
    return f"MIG-{number}" if number and f"GPU-{number}" != gpu_uuid(ordinal) else None


def multiprocessors(ordinal: int) -> int | None:
    """Return how many multiprocessors of a GPU this process may use; None if unknown."""
    device, count = _device(ordinal), ctypes.c_int()
    attribute = ctypes.c_int(MULTIPROCESSOR_COUNT)
    if device is None or _ask("cuDeviceGetAttribute", ctypes.byref(count), attribute, device):
        return None
    return count.value


def synchronize(ordinal: int) -> None:
    """Wait until a GPU has done all work of this process in its primary context, which XLA uses."""
    device, context = _device(ordinal), ctypes.c_void_p()
    if device is not None and not _ask("cuDevicePrimaryCtxRetain", ctypes.byref(context), device):
        _ask("cuCtxSetCurrent", context)
        _ask("cuCtxSynchronize")


def memory_share(count: int, free: float = 1.0) -> dict[str, str | None]:
    """Return the environment variables that limit XLA to one of `count` parts of a GPU's memory.

    `free` is the fraction of the memory to divide. If the user has set a memory fraction for XLA,
    that one is divided instead. XLA refuses to start with both its old and its new variable set, so
    the old one is unset.
    """
    older, newer = "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION"
    chosen = os.environ.get(newer) or os.environ.get(older)
    whole = float(chosen) if chosen else DEVICE_SHARE * free
    return {
        older: None,
        newer: f"{whole / count:.4f}",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }


def no_mps() -> dict[str, str | None]:
    """Return the environment changes that keep a process away from the user's MPS daemon."""
    return {name: None for name in os.environ if name.startswith("CUDA_MPS_")}


def _device(ordinal: int) -> ctypes.c_int | None:
    device = ctypes.c_int()
    return None if _ask("cuDeviceGet", ctypes.byref(device), ctypes.c_int(ordinal)) else device


def _uuid(function: str, ordinal: int) -> uuid.UUID | None:
    device, number = _device(ordinal), (ctypes.c_ubyte * 16)()
    if device is None or _ask(function, ctypes.byref(number), device):
        return None
    return uuid.UUID(bytes=bytes(number))


def _ask(name: str, *arguments: object) -> int:
    """Call a function of the driver and return its code, which is 0 for success."""
    driver = _driver()
    try:
        return -1 if driver is None else getattr(driver, name)(*arguments)
    except AttributeError:  # the driver is too old to have this function
        return -1


@cache
def _driver() -> ctypes.CDLL | None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return None if driver.cuInit(0) else driver
