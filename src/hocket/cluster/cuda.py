"""The GPUs of this process as CUDA numbers them: which is which, what a process may take of one.

Through libcuda alone, which makes no context and needs no package.
"""

from __future__ import annotations

import ctypes
import os
import uuid
from functools import cache

MULTIPROCESSOR_COUNT = 16
"""`CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`: under MPS, those that this process may use."""
DEVICE_SHARE = 0.9
"""What all processes on a GPU take of its memory together: contexts need the rest."""


def ordinal_of(name: str) -> int:
    """The number of a device in this process: 1 of `gpu:1`."""
    return int(name.partition(":")[2])


def gpu_uuid(ordinal: int) -> str | None:
    """The name of a GPU that means the same in every process, `GPU-...`; None if there is none.

    Asked of CUDA, which has read CUDA_VISIBLE_DEVICES: another library would number all GPUs.
    """
    device, found = _device(ordinal), (ctypes.c_ubyte * 16)()
    if device is None or _ask("cuDeviceGetUuid", ctypes.byref(found), device):
        return None
    return f"GPU-{uuid.UUID(bytes=bytes(found))}"


def multiprocessors(ordinal: int) -> int | None:
    """How many multiprocessors of a GPU this process may use; None if that cannot be known."""
    device, found = _device(ordinal), ctypes.c_int()
    attribute = ctypes.c_int(MULTIPROCESSOR_COUNT)
    if device is None or _ask("cuDeviceGetAttribute", ctypes.byref(found), attribute, device):
        return None
    return found.value


def memory_share(count: int) -> dict[str, str | None]:
    """What tells XLA to take at most one of `count` parts of a GPU's memory, as it needs it.

    What the user has set is for the whole GPU. XLA refuses the older name beside the newer.
    """
    older, newer = "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION"
    whole = float(os.environ.get(newer) or os.environ.get(older) or DEVICE_SHARE)
    return {
        older: None,
        newer: f"{whole / count:.4f}",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }


def no_mps() -> dict[str, str | None]:
    """What keeps a process away from the MPS that somebody else has set for this one."""
    return {name: None for name in os.environ if name.startswith("CUDA_MPS_")}


def _device(ordinal: int) -> ctypes.c_int | None:
    device = ctypes.c_int()
    return None if _ask("cuDeviceGet", ctypes.byref(device), ordinal) else device


def _ask(name: str, *arguments: object) -> int:
    """CUDA's answer, 0 if it is well."""
    driver = _driver()
    return -1 if driver is None else getattr(driver, name)(*arguments)


@cache
def _driver() -> ctypes.CDLL | None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return None if driver.cuInit(0) else driver
