"""Devices as a plan names them: as text, and in a place. Core asks for no kind of device."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import hocket
from hocket import Place, Plan
from hocket.cluster import Cluster
from hocket.cluster.slices import slice_backends, split
from hocket.core.plan.device_id import DeviceId, device_ids
from hocket.core.plan.json import from_json, to_json
from hocket.errors import PlanError
from hocket.runtime.launch import launch_named
from tests.toys import Toy

CORE = Path(hocket.core.__file__).parent
KINDS = {"cpu", "gpu", "tpu", "cuda", "rocm", "metal"}
ALL = ("env", "act", "learn")


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("cpu:0", DeviceId("cpu", 0)),
        ("gpu:12", DeviceId("gpu", 12)),
        ("n1/gpu:1", DeviceId("gpu", 1, node="n1")),
        ("n-1.lan/cpu:0", DeviceId("cpu", 0, node="n-1.lan")),
        ("gpu:0/mps:1of4@50%", DeviceId("gpu", 0, slice="mps:1of4@50%")),
        ("n1/gpu:0/mps:1of4@50%", DeviceId("gpu", 0, "n1", "mps:1of4@50%")),
    ],
)
def test_the_text_has_all_of_a_device(text: str, device: DeviceId) -> None:
    assert DeviceId.read(text) == device and str(device) == text
    assert device.is_host == (device.kind == "cpu")
    assert device.whole == DeviceId(device.kind, device.index, device.node)


@pytest.mark.parametrize("text", ["", "gpu", "gpu:", "gpu:x", "gpu:0/", "/gpu:0", "a:b/gpu:0", "0"])
def test_a_text_that_is_no_device_is_refused(text: str) -> None:
    with pytest.raises(PlanError) as refusal:
        Place("all", ALL, on=[text])
    assert str(refusal.value).startswith(
        f"`{text}` is no device: write KIND:NUMBER, as `hocket dev"
    )


def test_a_place_takes_devices_slices_ids_and_texts() -> None:
    device = Cluster.local().devices[0]
    (part,) = split(device, 1)
    place = Place("all", ALL, on=[device, part, DeviceId("gpu", 1, "n1"), "cpu:3"])
    assert place.on == device_ids(["cpu:0", "cpu:0/whole:0of1@100%", "n1/gpu:1", "cpu:3"])
    assert [x.is_host for x in place.on] == [True, True, False, True]
    assert place.on[:2] == (device.id, part.id)


def test_a_plan_keeps_devices_as_text() -> None:
    on = ["n1/gpu:1", "n1/cpu:0/cpu:0of2@50%"]
    graph = hocket.plan(Toy()).graph
    places = (Place("actor", ALL[:2], on=on[:1]), Place("learner", ALL[2:], on=on[1:]))
    plan = Plan(graph, places, launch=launch_named("processes"))
    text = to_json(plan)
    assert [place["on"] for place in json.loads(text)["places"]] == [on[:1], on[1:]]
    again = from_json(text, graph)
    assert again.places == plan.places
    assert [place.on[0].is_host for place in again.places] == [False, True]


def test_core_names_no_kind_of_device_and_no_slice() -> None:
    """Read from the literals of its source. Only `device_id` knows how a text is put together."""
    texts = [(file, text) for file in sorted(CORE.rglob("*.py")) for text in literals(file)]
    assert len(texts) > 400, "core was not read"
    wrong = [f"{file}: {x!r}" for file, x in texts if decides(x)]
    assert not wrong, "\n".join(wrong)
    slashes = {file.name for file, x in texts if x == "/" and file.parent.name == "plan"}
    assert slashes == {"device_id.py"}


def test_a_literal_that_decides_is_found() -> None:
    bad = ["cpu", "gpu:", "gpu:0", "cuda", "/mps:", "mps", "mig"]
    assert [x for x in bad if not decides(x)] == []
    assert [x for x in ["learner", "this plan has a cpu", " -> ", "whole"] if decides(x)] == []


def decides(text: str) -> bool:
    """Return True if a literal begins with the name of a kind, or of a way to cut devices."""
    ways = slice_backends().keys() - {"whole", "shared"}  # these are plain English words too
    name = re.split(r"\W+", text.strip("/"), maxsplit=1)[0]
    return len(text.split()) == 1 and name in KINDS | ways


def literals(file: Path) -> Iterator[str]:
    """Yield every string of a module except its docstrings."""
    tree = ast.parse(file.read_text())
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value
