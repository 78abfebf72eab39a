"""Means on one GPU, as far as they can be tested without one: the kernel, settings and refusals."""

from __future__ import annotations

import ctypes
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from hocket.core.plan.device_id import device_ids
from hocket.errors import PlanError
from hocket.runtime.averaging import Members, Space
from hocket.runtime.averaging.groups import control_bytes
from hocket.runtime.averaging.ways import ipc
from hocket.system.native import KERNEL, Unavailable, checked, library
from hocket.system.network.rendezvous import Rendezvous
from hocket.system.shared_memory import MemoryFile
from tests.compiled import SANITIZERS, THREADS, has_thread_sanitizer, program, run
from tests.runtime.averaging.replicas import MPS, asked
from tests.runtime.without_gpu import NO_DRIVER, needs_no_gpu

SOURCE = Path(__file__).parent / "native" / "test_reduce.cpp"
SITES = [[jax.ShapeDtypeStruct((1000,), jnp.float32)]]


@pytest.mark.parametrize("flags", [SANITIZERS, THREADS], ids=["memory", "threads"])
def test_the_kernel_passes_its_own_tests_as_threads(flags: tuple[str, ...]) -> None:
    if flags == THREADS and not has_thread_sanitizer():
        pytest.skip("this compiler has no thread sanitizer")
    ran = run(str(program([SOURCE], "-O1", *flags, folder=KERNEL.parent)))
    assert ran.returncode == 0, ran.stdout


@pytest.mark.parametrize("text", ["1m", "0", "-3", "inf", "nan"])
def test_how_long_a_replica_waits_is_a_number(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_REDUCE_SECONDS", text)
    with pytest.raises(PlanError, match=f"HOCKET_REDUCE_SECONDS={text}: use a number"):
        _ = asked(MPS).nbytes


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
