"""Slices by name, slices that are refused, and slices of a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from typing import Any

import pytest

import hocket
from hocket import Place, Plan
from hocket.cluster import Cluster, Device
from hocket.cluster.nvidia import mps
from hocket.cluster.nvidia.cuda import memory_share, no_mps
from hocket.cluster.slices import (
    Slices,
    changed,
    named,
    read_slice,
    slice_backends,
    split,
)
from hocket.cluster.slices.mps import Mps
from hocket.cluster.slices.shared import Shared
from hocket.core.plan.device_id import DeviceId
from hocket.errors import PlanError
from hocket.runtime.launch import launch_named
from hocket.runtime.refusals import refuse
from tests.toys import Toy

CPU = Device(DeviceId("cpu", 0), "cpu")
GPU = Device(DeviceId("gpu", 1), "NVIDIA H200")
CORES = sorted(os.sched_getaffinity(0))


def test_every_backend_is_known_by_its_file() -> None:
    assert set(slice_backends()) == {"cpu", "whole", "mps", "shared", "mig"}
    assert all(backend.name == name for name, backend in slice_backends().items())


@pytest.mark.parametrize("backend", ["cpu", "whole", "mps", "shared", "mig"])
def test_an_id_says_all_of_a_slice(backend: str) -> None:
    made = named(GPU, backend, 1, 4, 50)
    assert str(made) == f"gpu:1/{backend}:1of4@50%"
    read = read_slice(DeviceId.read(str(made)))
    assert read is not None and read.id == made.id
    assert (str(read.of), read.backend, read.index, read.count, read.share) == (
        "gpu:1", backend, 1, 4, 50,
    )  # fmt: skip
    assert read.of == GPU.id
    assert {made: 1}[made] == 1  # a device is a key


def test_a_whole_device_is_no_slice() -> None:
    assert read_slice(GPU.id) is None
    assert Slices([GPU.id, CPU.id]).env(GPU.id) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cpu:0/cpu:1of4", "`cpu:1of4` of cpu:0/cpu:1of4 is no slice: write cpu:0/BACKEND:INDEX"),
        ("cpu:0/cup:1of4@25%", "unknown slice backend `cup` of cpu:0/cup:1of4@25%. Did you mean `"),
    ],
)
def test_what_is_no_slice_is_refused_before_anything_starts(text: str, message: str) -> None:
    place = Place("all", ("env", "act", "learn"), on=[text])
    plan = Plan(hocket.plan(Toy()).graph, (place,), launch=launch_named("processes"))
    with pytest.raises(PlanError) as raised:
        refuse(plan)
    assert str(raised.value).startswith(f"the place `all`: {message}")


@pytest.mark.parametrize(
    ("device", "arguments", "message"),
    [
        (CPU, (0,), "cannot be cut into 0 slices of 100 %: use at least 1 slice, with a share"),
        (CPU, (2, 0), "cannot be cut into 2 slices of 0 %"),
        (CPU, (2, 101), "cannot be cut into 2 slices of 101 %"),
        (CPU, (2, None, "cup"), "unknown slice backend `cup`. Did you mean `cpu`?"),
        (CPU, (2, None, "mps"), "cpu:0 cannot be cut by `mps`: it cuts NVIDIA GPUs"),
        (CPU, (2, None, "shared"), "cpu:0 cannot be cut by `shared`: it cuts NVIDIA GPUs"),
        (CPU, (2, None, "mig"), "cpu:0 cannot be cut by `mig`: it cuts NVIDIA GPUs"),
        (GPU, (2, None, "cpu"), "gpu:1 cannot be cut by `cpu`: it cuts CPUs, and this is a NVIDIA"),
        (CPU, (2, 30), "an even share of the cores each, so a share of 30 % is not possible"),
        (GPU, (2, None, "whole"), "the whole of gpu:1 is 1 slice of 100 %, but 2 of 100 % were"),
        (GPU, (1, 50, "whole"), "the whole of gpu:1 is 1 slice of 100 %, but 1 of 50 % were"),
        (GPU, (2, None, "green"), "cannot be cut by `green`: XLA does not support green contexts"),
    ],
)
def test_what_cannot_be_cut_is_refused(
    device: Device, arguments: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(PlanError) as raised:
        split(device, *arguments)
    assert message in str(raised.value)


def test_shares() -> None:
    """Under MPS a share is twice an even one, but at most 100 %. Taking turns needs no share."""
    shares = {n: Mps().layout(GPU, n, None)[0].share for n in (1, 2, 3, 4, 8)}
    assert shares == {1: 100, 2: 100, 3: 66, 4: 50, 8: 25}
    assert [part.share for part in Mps().layout(GPU, 2, 30)] == [30, 30]
    with pytest.raises(PlanError, match="cut into 49 slices, but MPS serves 48 at most"):
        Mps().layout(GPU, 49, None)
    assert [part.share for part in Shared().layout(GPU, 3, None)] == [100] * 3
    with pytest.raises(PlanError, match="take turns on the whole GPU, so a share of 30 %"):
        Shared().layout(GPU, 3, 30)


@pytest.fixture
def _no_mps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this a machine without NVIDIA's programs, like most."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(mps, "FOLDERS", ("/nonexistent",))


@pytest.mark.usefixtures("_no_mps")
def test_without_mps_it_is_the_whole_device_and_the_plan_says_so() -> None:
    """But if it was requested by name, it is refused."""
    (whole,) = split(GPU, 4)
    assert str(whole) == "gpu:1/whole:0of1@100%"
    why = "`nvidia-cuda-mps-control` and `nvidia-cuda-mps-server` are neither on PATH nor in"
    assert whole.note.startswith(f"gpu:1 is used whole, not as 4 slices: {why}")
    with pytest.raises(PlanError, match="cannot be cut by `mps`: `nvidia-cuda-mps-control` and"):
        split(GPU, 4, backend="mps")

    graph = hocket.plan(Toy()).graph
    from hocket.strategies import resolve

    plan = resolve("sliced:slices=4")(graph, Cluster((GPU,)))
    assert [place.on for place in plan.places] == [(whole.id,)]
    assert whole.note in str(plan)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_cores_are_dealt_out(count: int) -> None:
    parts = split(CPU, count, backend="cpu")
    with closing(Slices(part.id for part in parts)) as slices:
        dealt = [slices.env(part.id)["HOCKET_CORES"] for part in parts]
    cores = [[int(core) for core in (text or "").split(",")] for text in dealt]
    assert {core for some in cores for core in some} == set(CORES)
    if count <= len(CORES):
        assert [core for some in cores for core in some] == CORES  # each core once
    else:
        assert all(len(some) == 1 for some in cores)


SEE = """
import json
from hocket.system.cores import keep_to_cores
keep_to_cores()
from hocket.cluster.slices import seen_here
print(json.dumps(seen_here()))
"""


def test_a_process_on_other_cores_is_found_out() -> None:
    """Both processes are real, and the second one was not told its cores."""
    part = split(CPU, len(CORES) + 1, backend="cpu")[0]
    with closing(Slices([part.id])) as slices:
        told = slices.env(part.id) | {"HOCKET_CORES": str(CORES[0])}
        slices._opened["cpu"]._cores[part.id] = CORES[:1]  # type: ignore[attr-defined]
        slices.verify(part.id, _seen(changed(os.environ, told)))
        assert slices.seen[part.id]["verified"] and slices.seen[part.id]["cores"] == CORES[:1]
        if len(CORES) == 1:
            pytest.skip("one core is all that there is.")
        wrong = rf"was not set up as planned: cores .*, not \[{CORES[0]}\]"
        with pytest.raises(PlanError, match=wrong):
            slices.verify(part.id, _seen(changed(os.environ, {"HOCKET_CORES": None})))
        assert not slices.seen[part.id]["verified"]


def _seen(environment: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", SEE], env=environment, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_an_environment_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert changed({"A": "1", "B": "2"}, {"A": None, "C": "3"}) == {"B": "2", "C": "3"}
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/somebody/elses")
    assert no_mps() == {"CUDA_MPS_PIPE_DIRECTORY": None}


def test_slices_share_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fraction that the user has set is for the whole device. XLA refuses both names at once."""
    older, newer = "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION"
    for name in (older, newer):
        monkeypatch.delenv(name, raising=False)
    assert memory_share(3) == {
        older: None, newer: "0.3000", "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }  # fmt: skip
    assert memory_share(2, free=0.5)[newer] == "0.2250"
    monkeypatch.setenv(older, "0.5")
    environment = changed(os.environ, memory_share(2))
    assert environment[newer] == "0.2500" and older not in environment
    monkeypatch.setenv(newer, "0.8")
    assert memory_share(2)[newer] == "0.4000"
