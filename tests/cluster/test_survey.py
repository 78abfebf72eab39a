"""`hocket devices` says what this machine has, and how it can be cut."""

from __future__ import annotations

import json
import os

import jax

from hocket.cluster import Cluster, Device
from hocket.core.plan.device_id import DeviceId
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
