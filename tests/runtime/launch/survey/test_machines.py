"""The survey of a cluster: what its nodes say, and what if they do not."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

import hocket
from hocket.runtime.launch import Command, Seat, cluster_launcher
from hocket.runtime.launch.launchers.loopback import LAUNCH, Loopback
from hocket.runtime.launch.launchers.processes import ChildMember
from hocket.runtime.launch.survey.machines import Surveyed, cluster_of, survey_nodes
from hocket.system.cores import usable_cores
from tests.toys import Toy

pytestmark = pytest.mark.usefixtures("nothing_is_left")


class Instead(Loopback):
    """A cluster on whose nodes another program runs than the one that is asked for."""

    def __init__(self, script: str) -> None:
        super().__init__("2")
        self._script = script

    def start(self, seat: Seat, command: Command) -> ChildMember:
        return ChildMember(("/bin/sh", "-c", self._script), os.environ)


def machine(**fields: object) -> dict[str, object]:
    device = {"name": "cpu:0", "kind": "cpu", "memory": 8}
    plain = {"devices": [device], "links": [], "cores": 2, "memory": 8, "processor": "Z80"}
    return plain | fields


def test_a_survey_of_this_machine() -> None:
    launcher = cluster_launcher("loopback:2")
    surveyed = survey_nodes(launcher, ["n0", "n1"], 120.0)
    assert [each.problems for each in surveyed] == [(), ()]
    assert surveyed[0].machine["cores"] == max(1, usable_cores() // 2)
    assert all(device["slices"] == {} for device in surveyed[0].machine["devices"])
    cluster = cluster_of(surveyed, LAUNCH, {})
    assert [node.name for node in cluster.nodes] == ["n0", "n1"]
    assert {str(device) for device in cluster.devices} >= {"n0/cpu:0", "n1/cpu:0"}
    assert cluster.notes == () and cluster.launch == LAUNCH


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo oops >&2; exit 3", "ended with code 3.\noops"),
        ("echo Welcome", "it answered with 'Welcome'"),
        ("exec sleep 600", "it did not describe itself in time: process"),
    ],
)
def test_nodes_that_do_not_answer(script: str, said: str) -> None:
    surveyed = survey_nodes(Instead(script), ["n0", "n1"], 1.0)
    assert [each.machine for each in surveyed] == [{}, {}]
    assert all(said in each.problems[0] for each in surveyed)
    with pytest.raises(ValueError, match="the node `n0`: ") as error:
        cluster_of(surveyed, LAUNCH, {})
    assert "\nthe node `n1`: " in str(error.value)


def test_devices_are_chosen() -> None:
    gpus = [{"name": f"gpu:{index}", "kind": "H200", "memory": 9} for index in range(2)]
    both = [*gpus, {"name": "cpu:0", "kind": "cpu", "memory": 8}]
    link = {"one": "gpu:0", "other": "gpu:1", "how": "NVLink"}
    surveyed = [Surveyed(name, machine(devices=both, links=[link])) for name in ("n0", "n1")]
    cluster = cluster_of(surveyed, LAUNCH, {"n1": ["cpu:0", "gpu:1"]})
    assert [str(device) for device in cluster.devices] == [
        "n0/gpu:0", "n0/gpu:1", "n1/cpu:0", "n1/gpu:1",
    ]  # fmt: skip
    assert cluster.links[1] == ("n1/gpu:0", "n1/gpu:1", "NVLink")
    with pytest.raises(ValueError, match="unknown device `gpu:2` of the node `n1`"):
        cluster_of(surveyed, LAUNCH, {"n1": ["gpu:2"]})


def test_unequal_processors_are_told() -> None:
    surveyed = [Surveyed("n0", machine()), Surveyed("n1", machine(processor="6502"))]
    (note,) = cluster_of(surveyed, LAUNCH, {}).notes
    assert note.startswith("note: the processors differ (n0: Z80; n1: 6502), so numbers agree")
    cluster = cluster_launcher("loopback:2").survey(60)
    plan = hocket.plan(
        Toy(), distribute="actor_learner:actors=2", cluster=replace(cluster, notes=(note,))
    )
    assert note in str(plan)


def test_shortages_are_those_of_the_node() -> None:
    (shortage,) = Surveyed("n0", machine(free={"memory": 1})).shortages
    assert "its memory has only 1 B free" in shortage
    assert Surveyed("n1", {}).shortages == []
