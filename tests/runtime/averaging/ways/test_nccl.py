"""Means by NCCL, as far as they can be tested without GPUs."""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import pytest

from hocket.core.plan.device_id import device_ids
from hocket.runtime.averaging import Members, Space
from hocket.runtime.averaging.ways import nccl, shm
from hocket.system.native import Unavailable
from hocket.system.shared_memory import MemoryFile
from tests.runtime.averaging.replicas import SITES


def test_without_nccl_the_reason_says_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "_candidates", lambda: iter(["nowhere/libnccl.so.2"]))
    with pytest.raises(Unavailable, match=r"NCCL was not found.*jax\[cuda13\].*nowhere"):
        nccl.new_id()


def test_what_takes_too_long_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    assert nccl.in_time(lambda: 7, "joining") == 7
    monkeypatch.setattr(nccl, "SECONDS", 0.01)
    go = threading.Event()
    with pytest.raises(Unavailable, match=r"joining took more than 0\.01 s"):
        nccl.in_time(lambda: int(go.wait()), "joining")
    go.set()


def test_on_cpus_the_hosts_memory_stands_in_for_it() -> None:
    """So it is measured only on GPUs, and the stand-in needs the memory of `shm`."""
    simulated, real = (Members(device_ids([f"{kind}:0", f"{kind}:1"])) for kind in ("cpu", "gpu"))
    assert "simulated" in nccl.AVERAGE.note(simulated)
    assert "simulated" not in nccl.AVERAGE.note(real)
    assert not nccl.AVERAGE.is_choice(simulated) and nccl.AVERAGE.is_choice(real)
    room = nccl.AVERAGE.room(simulated, SITES)
    assert room == shm.AVERAGE.room(simulated, SITES)
    listener = nccl.AVERAGE.listen(simulated, 0, SITES, Space(MemoryFile.create(room), 0, room))
    assert isinstance(listener.join([b"", b""], 0), shm.OnHost)
    # On GPUs replicas only compare there what they are about to average.
    large = [[jax.ShapeDtypeStruct((1 << 20,), jnp.float32)]]
    assert nccl.AVERAGE.room(real, large) < 1 << 20 < nccl.AVERAGE.room(simulated, large)
