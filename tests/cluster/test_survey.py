"""`hocket devices` says what this machine has, and how it can be cut."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import jax
import pytest

from hocket.cluster import Cluster, Device
from hocket.cluster.rates import measured_rates
from hocket.core.plan.device_id import DeviceId
from hocket.system.cores import usable_cores
from hocket.system.nodes import resources
from tests.cluster.driver import GPUS, on_gpus
from tests.front import Hocket


def test_this_machine() -> None:
    cluster = Cluster.local()
    assert [str(device) for device in cluster.devices] == [f"cpu:{i}" for i in range(4)]
    assert cluster.cores == len(os.sched_getaffinity(0))
    assert cluster.memory and all(d.memory == cluster.memory for d in cluster.devices)
    assert cluster.links == ()
    # The memory and kind of a device are no part of its identity.
    assert Device(DeviceId("cpu", 0), "cpu") == cluster.devices[0] and len({*cluster.devices}) == 4


def test_devices_are_listed(hocket: Hocket) -> None:
    said = hocket.well("devices")
    assert "cpu:0, cpu:1, cpu:2, cpu:3: cpu, " in said  # equal devices are described once
    assert f"jax {jax.__version__}" in said
    assert "    cpu     yes" in said and "    mps     no: it cuts NVIDIA GPUs" in said
    assert "    green   no: XLA does not support green contexts" in said


def test_devices_as_json(hocket: Hocket) -> None:
    machine = json.loads(hocket.well("devices", "--json"))
    assert [device["name"] for device in machine["devices"]] == [f"cpu:{i}" for i in range(4)]
    slices = machine["devices"][0]["slices"]
    assert {name for name, why in slices.items() if not why} == {"cpu", "whole"}


def test_links_between_gpus() -> None:
    code = """
import json
from hocket.cluster.devices import _links
from hocket.core.plan.device_id import device_ids
print(json.dumps(_links(device_ids(["gpu:0", "gpu:1"]))))
"""
    assert on_gpus(code) == [["gpu:0", "gpu:1", "NVLink"]]
    assert on_gpus(code, CUDA_VISIBLE_DEVICES=GPUS[0]) == []


def test_the_nodes_of_a_cluster(hocket: Hocket) -> None:
    said = hocket.well("devices", "--cluster", "loopback:2")
    rows = [line.split()[:2] for line in said.splitlines()]
    assert ["node", "cores"] in rows and "add --check" in said
    assert rows.count(["n0", str(max(1, usable_cores() // 2))]) == 1
    assert f"jax {jax.__version__}" in said and said.count("libhocket.so built") == 1
    assert "n0/cpu:0" in said and "    whole   yes" in said


def test_a_check_is_kept(hocket: Hocket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    about = json.loads(hocket.well("devices", "--cluster", "loopback:2", "--check", "--json"))
    assert about["cluster"] == "loopback:2" and about["problems"] == []
    assert [node["name"] for node in about["nodes"]] == ["n0", "n1"]
    rates = measured_rates("loopback:2")
    assert rates.keys() == {("n0", "n1"), ("n1", "n0")}
    assert [asdict(rate) for rate in rates.values()] == about["check"]["rates"]


def test_problems_are_told_and_are_an_error(
    hocket: Hocket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(resources, "MEMORY_NBYTES", 1 << 60)
    done = hocket("devices", "--cluster", "loopback:1", "--check")
    assert done.code == 1
    assert "1 problem:\n- the node `n0`: its memory has only " in done.out


def test_only_a_cluster_can_be_checked(hocket: Hocket) -> None:
    done = hocket("devices", "--check")
    assert done.code == 2 and "--check tries the nodes of a cluster" in done.err
    done = hocket("devices", "--cluster", "threads")
    assert done.code == 2 and "`threads` is no cluster" in done.err
