"""Which messages stay on a GPU, and why others do not; `cluster/gpu_checks.py` sends some."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hocket import Channel, Place, Plan, PlanError, trace
from hocket.runtime import transport_ipc
from hocket.runtime.arena import Arena
from hocket.runtime.layout import layout
from hocket.runtime.pipes import pipes_of
from hocket.runtime.route import Link, links
from hocket.runtime.transport_ipc import OnOneGpu, stays_on_gpu
from hocket.runtime.transport_shm import SharedMemory
from tests.runtime.test_reduce_native import NO_DRIVER, needs_no_gpu
from tests.toys import Toy

USUAL = Channel()
ACTING, LEARNING = "gpu:0/mps:0of2@100%", "gpu:0/mps:1of2@100%"


@pytest.fixture(autouse=True)
def there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names decide, and whether there is CUDA."""
    monkeypatch.setattr(transport_ipc, "gpu_uuid", lambda _: "GPU-0")


def planned(
    acting: tuple[str, ...] = (ACTING,), learning: tuple[str, ...] = (LEARNING,),
    channel: Channel = USUAL, replicas: int = 1,
) -> Plan:  # fmt: skip
    places = (
        Place("actor", ("env", "act"), on=acting, replicas=replicas),
        Place("learner", ("learn",), on=learning),
    )
    return Plan(trace(Toy(), 8), places, {"actor -> learner": channel}, launch="processes")


def up(plan: Plan) -> Link:
    return next(link for link in links(plan) if link.transfer.source == "actor")


STAYS: dict[str, dict[str, Any]] = {
    "slices of one GPU": {},
    "slices that take turns": {"acting": ("gpu:0/shared:0of2@100%",)},
    "the GPU itself": {"acting": ("gpu:0",), "learning": ("gpu:0",)},
    "one of two actors": {"acting": (ACTING, "gpu:1"), "replicas": 2},
    "asked for": {"channel": Channel(direct=True)},
}
GOES: dict[str, tuple[dict[str, Any], str]] = {
    "two GPUs": ({"acting": ("gpu:1",)}, r"two instances on one GPU, and these are on .*gpu:1"),
    "a CPU": ({"acting": ("cpu:0",), "learning": ("cpu:0",)}, "these are on cpu:0"),
    "a GPU and the host": ({"acting": ("cpu:0",)}, "these are on cpu:0, gpu:0"),
    "MIG": ({"acting": ("gpu:0/mig:0of2@50%",), "learning": ("gpu:0/mig:1of2@50%",)}, "of MIG do"),
    "a delay": ({"channel": Channel(delay=0.1)}, "with a delay waits in the host's memory"),
    "no names": ({"acting": ()}, "`actor` has not one device by name"),
}


@pytest.mark.parametrize("case", STAYS)
def test_what_stays_on_the_gpu(case: str) -> None:
    plan = planned(**STAYS[case])
    assert stays_on_gpu(plan, up(plan))


@pytest.mark.parametrize("case", GOES)
def test_what_goes_through_the_host_and_why(case: str) -> None:
    options, why = GOES[case]
    plan = planned(**options)
    assert not stays_on_gpu(plan, up(plan))
    delay = options.get("channel", USUAL).delay
    asked = planned(**{**options, "channel": Channel(direct=True, delay=delay)})
    with pytest.raises(PlanError, match=rf"`actor/0 -> learner/0` cannot be direct: .*{why}"):
        stays_on_gpu(asked, up(asked))


def test_nothing_stays_there_that_is_not_to(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(channel=Channel(direct=False))
    assert not stays_on_gpu(plan, up(plan))
    monkeypatch.setattr(transport_ipc, "gpu_uuid", lambda _: None)  # of another maker
    assert not stays_on_gpu(planned(), up(planned()))


def test_what_stays_on_the_gpu_takes_none_of_the_hosts_memory() -> None:
    there, here = (layout(planned(channel=Channel(direct=way))) for way in (True, False))
    assert {link.name for link, _ in there.pipes} == {link.name for link, _ in here.pipes}
    kinds = {}
    for way in (True, False):
        plan = planned(channel=Channel(direct=way))
        where = layout(plan)
        arena, device = Arena.create(where.nbytes), SimpleNamespace(platform="gpu")
        found = pipes_of(plan, "learner", 0, arena, where.pipes, [device])
        kinds[way] = type(found[up(plan).key])
    assert kinds == {True: OnOneGpu, False: SharedMemory}


@needs_no_gpu
def test_without_a_driver_the_error_says_what_to_do() -> None:
    link = up(planned())
    arena = Arena.create(OnOneGpu.nbytes(link))
    pipe = OnOneGpu(arena, 0, link, SimpleNamespace(local_hardware_id=0))
    with pytest.raises(
        RuntimeError,
        match=rf"`actor/0 -> learner/0` cannot stay on the GPU: .*({NO_DRIVER}).*`direct=False`",
    ):
        pipe.send([])
