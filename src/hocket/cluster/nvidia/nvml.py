"""NVIDIA's management library, NVML: questions about this machine's GPUs, without a Python package.

The numbers that NVML gives GPUs ignore CUDA_VISIBLE_DEVICES, so GPUs are named by UUID here. The
functions only read: they change no clocks and no modes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

NOT_SUPPORTED = 3
"""NVML's error code for a query that the GPU does not support."""
COMPUTE_MODES = ("default", "exclusive thread", "prohibited", "exclusive process")
NVLINK = 2
"""NVML's code to ask for NVLink in `nvmlDeviceGetP2PStatus`: `NVML_P2P_CAPS_INDEX_NVLINK`."""
PCIE_LEVELS = {
    0: "one board",
    10: "one PCIe switch",
    20: "PCIe switches",
    30: "one PCIe host bridge",
    40: "one NUMA node",
    50: "between NUMA nodes",
}
"""The names of NVML's topology levels (`nvmlGpuTopologyLevel_t`), closest first. A level says which
component two GPUs have in common, such as a switch or a NUMA node."""


class NvmlError(RuntimeError):
    """The library is missing, or a call to it failed."""

    def __init__(self, text: str, code: int = -1) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class Gpu:
    """A GPU, as the driver describes it."""

    uuid: str
    name: str
    memory: int
    """The total memory in bytes."""
    used: int
    """The memory in use by all processes, in bytes."""
    compute_mode: str
    mig: bool
    """True if MIG mode is on. Then the GPU has MIG instances, or an administrator can make some."""


class Handle(ctypes.Structure):
    """An opaque type of NVML: a device."""


class _MemoryInfo(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


def driver_version() -> str:
    """Return the version of the NVIDIA driver."""
    return _text("nvmlSystemGetDriverVersion")


def gpu(uuid: str) -> Gpu:
    """Return the GPU with this UUID."""
    return _read(handle_of(uuid))


def handle_of(uuid: str) -> Any:
    """Return the handle of the device with this UUID, for `call`."""
    return _handle("nvmlDeviceGetHandleByUUID", uuid.encode())


def free_part(uuid: str) -> float:
    """Return the fraction of a GPU's memory that no process uses; 1 if that is unknown."""
    try:
        asked = gpu(uuid)
    except NvmlError:
        return 1.0
    return 1.0 - asked.used / asked.memory


def link(one: str, other: str) -> str:
    """Return the connection of two GPUs, given by UUID: `NVLink`, or the PCIe level they share."""
    ends = handle_of(one), handle_of(other)
    state, level = ctypes.c_uint(), ctypes.c_uint()
    nvlink = ctypes.c_uint(NVLINK)
    refused = call("nvmlDeviceGetP2PStatus", *ends, nvlink, ctypes.byref(state), may=NOT_SUPPORTED)
    if not refused and state.value == 0:
        return "NVLink"
    call("nvmlDeviceGetTopologyCommonAncestor", *ends, ctypes.byref(level))
    return PCIE_LEVELS.get(level.value, f"level {level.value}")


def mig_instances(uuid: str) -> list[tuple[str, str]]:
    """Return the UUID and name of each MIG instance of a GPU; empty if MIG is off."""
    device, count = handle_of(uuid), ctypes.c_uint()
    if not _mig_is_on(device):
        return []
    call("nvmlDeviceGetMaxMigDeviceCount", device, ctypes.byref(count))
    instances: list[tuple[str, str]] = []
    for i in range(count.value):
        instance = ctypes.POINTER(Handle)()
        arguments = (device, ctypes.c_uint(i), ctypes.byref(instance))
        if not call("nvmlDeviceGetMigDeviceHandleByIndex", *arguments, may="any"):
            instances.append((_text("nvmlDeviceGetUUID", instance), _name(instance)))
    return instances


def not_shared(uuid: str) -> str:
    """Return the reason why processes cannot share a GPU; "" if they can or if that is unknown."""
    try:
        asked = gpu(uuid)
    except NvmlError:
        return ""
    if asked.compute_mode != "default":
        return (
            f"its compute mode is `{asked.compute_mode}`, which hocket never changes. An "
            f"administrator can: `nvidia-smi -c DEFAULT`."
        )
    return "it is cut into MIG instances: use `cut=mig`." if asked.mig else ""


def call(name: str, *arguments: Any, may: int | str = 0) -> int:
    """Call a function of the library and return its code, which is 0 for success.

    Raise for any other code except `may`. With `may="any"`, raise for no code.
    """
    library = _library()
    try:
        function: Callable[..., int] = getattr(library, name)
    except AttributeError:
        raise NvmlError(f"the NVIDIA driver has no {name}: install a newer driver.") from None
    code = function(*arguments)
    if code not in (0, may) and may != "any":
        raise NvmlError(f"{name}: {_explain(library, code)}", code)
    return code


def _read(handle: Any) -> Gpu:
    memory, mode = _MemoryInfo(), ctypes.c_uint()
    call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
    call("nvmlDeviceGetComputeMode", handle, ctypes.byref(mode), may=NOT_SUPPORTED)
    return Gpu(
        _text("nvmlDeviceGetUUID", handle), _name(handle), memory.total, memory.used,
        COMPUTE_MODES[mode.value], _mig_is_on(handle),
    )  # fmt: skip


def _mig_is_on(handle: Any) -> bool:
    now, later = ctypes.c_uint(), ctypes.c_uint()
    call("nvmlDeviceGetMigMode", handle, ctypes.byref(now), ctypes.byref(later), may="any")
    return now.value == 1


def _handle(name: str, which: int | bytes) -> Any:
    handle = ctypes.POINTER(Handle)()
    call(name, which, ctypes.byref(handle))
    return handle


def _name(handle: Any) -> str:
    return _text("nvmlDeviceGetName", handle)


def _text(name: str, *arguments: Any) -> str:
    answer = ctypes.create_string_buffer(96)
    call(name, *arguments, answer, ctypes.c_uint(len(answer)))
    return answer.value.decode()


def _explain(library: ctypes.CDLL, code: int) -> str:
    explain = library.nvmlErrorString
    explain.restype = ctypes.c_char_p
    return explain(code).decode()


@cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        raise NvmlError("there is no NVIDIA driver: libnvidia-ml.so.1 is not found.") from None
    if code := library.nvmlInit_v2():
        raise NvmlError(f"nvmlInit_v2: {_explain(library, code)}", code)
    return library
