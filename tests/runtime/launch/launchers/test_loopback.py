"""A cluster of nodes that are all this machine."""

from __future__ import annotations

import os
import sys

import pytest

import hocket
from hocket.cluster import Cluster, Device, Node
from hocket.core.plan.device_id import DeviceId
from hocket.runtime.launch import Command, Seat, cluster_named, launcher_named
from hocket.runtime.launch.watch import fate_of
from tests.toys import Toy


def test_nodes_share_the_cores_and_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3, 4})
    cluster = cluster_named("loopback:2")
    assert [(node.name, node.cores) for node in cluster.nodes] == [("n0", 2), ("n1", 3)]
    assert cluster.cores == 5 and cluster.launch and cluster.launch.name == "loopback:2"
    whole = cluster_named("loopback:1").nodes[0].memory
    assert whole and cluster.nodes[0].memory == whole // 2
    assert {device.id.node for device in cluster.devices} == {"n0", "n1"}
    assert all(device.id.is_host for device in cluster.devices)


@pytest.mark.parametrize("name", ["loopback", "loopback:0", "loopback:-1", "loopback:two"])
def test_a_number_of_nodes_is_needed(name: str) -> None:
    with pytest.raises(ValueError, match="give the number of nodes, as in `loopback:2`"):
        cluster_named(name)


def test_a_process_has_the_cores_of_its_node() -> None:
    cores = sorted(os.sched_getaffinity(0))
    code = "from hocket.system.cores import *; import os; keep_to_cores(); "
    code += "print(sorted(os.sched_getaffinity(0)))"
    launcher = launcher_named("loopback:2")
    for node, expected in (("n0", cores[: max(1, len(cores) // 2)]), ("n1", None)):
        seat, command = Seat(node, (), node=node), Command((sys.executable, "-c", code), os.environ)
        member = launcher.start(seat, command)
        line = member.hello(30.0)
        assert fate_of(member, 30.0)
        assert expected is None or line == str(expected)


def test_a_plan_for_other_nodes_is_refused() -> None:
    node = Node("elsewhere", 4)
    device = Device(DeviceId("cpu", 0, node.name), "cpu")
    cluster = Cluster((device,), 4, nodes=(node,), launch=cluster_named("loopback:2").launch)
    with pytest.raises(
        hocket.PlanError, match=r"names the node `elsewhere`, and its nodes are n0, n1"
    ):
        hocket.plan(Toy(), distribute="actor_learner:actors=1", cluster=cluster)
