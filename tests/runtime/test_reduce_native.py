"""Means on a GPU, as far as they can be tested without one: protocol, compiler and refusals."""

from __future__ import annotations

import ctypes
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from hocket.cluster.nvidia import nvrtc
from hocket.cluster.nvidia.nvrtc import NoCompiler, cubin
from hocket.core.plan.device_id import device_ids
from hocket.runtime.averaging import Members, Space
from hocket.runtime.averaging.groups import control_bytes
from hocket.runtime.averaging.ways import ipc, nccl
from hocket.system.native import KERNEL, Unavailable, checked, library
from hocket.system.rendezvous import Rendezvous
from hocket.system.shared_memory import MemoryFile
from tests.compiled import SANITIZERS, THREADS, has_thread_sanitizer, program, run

SOURCE = Path(__file__).parent / "native" / "test_reduce.cpp"
SITES = [[jax.ShapeDtypeStruct((1000,), jnp.float32)]]
NO_DRIVER = r"CUDA driver|cuInit"
needs_no_gpu = pytest.mark.skipif(
    any(Path("/dev").glob("nvidia[0-9]*")), reason="there is a GPU, so there is no reason to give"
)


@pytest.mark.parametrize("flags", [SANITIZERS, THREADS], ids=["memory", "threads"])
def test_the_kernel_passes_its_own_tests_as_threads(flags: tuple[str, ...]) -> None:
    if flags == THREADS and not has_thread_sanitizer():
        pytest.skip("this compiler has no thread sanitizer")
    ran = run(str(program([SOURCE], "-O1", *flags, folder=KERNEL.parent)))
    assert ran.returncode == 0, ran.stdout


def test_the_kernel_compiles_for_gpus() -> None:
    try:
        nvrtc.find_nvrtc()
    except NoCompiler as error:
        pytest.skip(str(error))
    for capability in ((8, 0), (9, 0)):
        assert cubin(KERNEL, *capability).startswith(b"\x7fELF")


def test_without_a_compiler_the_reason_says_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "_candidates", lambda: iter(["nowhere/libnvrtc.so.13"]))
    with pytest.raises(NoCompiler, match=r"NVRTC was not found.*jax\[cuda13\].*nowhere"):
        nvrtc.find_nvrtc()


def test_without_nccl_the_reason_says_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "_candidates", lambda: iter(["nowhere/libnccl.so.2"]))
    with pytest.raises(Unavailable, match=r"NCCL was not found.*jax\[cuda13\].*nowhere"):
        nccl.new_id()


@needs_no_gpu
def test_without_a_driver_the_reason_says_so() -> None:
    major = ctypes.c_int()
    with pytest.raises(Unavailable, match=NO_DRIVER):
        checked(library().hocket_cuda_capability, 0, ctypes.byref(major), ctypes.byref(major))


@needs_no_gpu
def test_who_cannot_use_the_gpu_tells_the_others() -> None:
    """A replica whose memory on the GPU cannot be made, while the other waits for its handle."""
    members = Members(device_ids(f"gpu:0/mps:{i}of2@100%" for i in range(2)))
    file = MemoryFile.create(nbytes := ipc.AVERAGE.room(members, SITES))
    listener = ipc.AVERAGE.listen(members, 1, SITES, Space(file, 0, nbytes))
    with pytest.raises(Unavailable, match=NO_DRIVER):
        listener.join([listener.address] * 2, 0)
    other = Rendezvous(file, control_bytes(SITES, len(members)), len(members), 0)
    with pytest.raises(Unavailable, match=rf"({NO_DRIVER}).*in replica 1"):
        other.tell(b"")
