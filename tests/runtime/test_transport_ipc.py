"""Which messages stay on a GPU, and why others do not; `cluster/gpu_checks.py` sends some."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from hocket import Channel, Place, Plan, PlanError, trace
from hocket.core.plan.checks import check
from hocket.runtime.channels.choice import pipes_of
from hocket.runtime.channels.links import Link, links
from hocket.runtime.channels.transports import one_gpu
from hocket.runtime.channels.transports.one_gpu import OnOneGpu, stays_on_gpu
from hocket.runtime.channels.transports.shared_memory import SharedMemory
from hocket.runtime.instance.exchange import Exchange
from hocket.runtime.launch import launch_named, watch
from hocket.runtime.launch.launchers.threads import Threads
from hocket.runtime.launch.memory_map import layout
from hocket.runtime.launch.watch import InstanceError
from hocket.runtime.observe.status import new_statuses
from hocket.system.native import library
from hocket.system.shared_memory import Arena
from hocket.testing import difference
from hocket.training.loop import make_executor
from tests.runtime.test_reduce_native import NO_DRIVER, needs_no_gpu
from tests.toys import Toy

USUAL = Channel()
ACTING, LEARNING = "gpu:0/mps:0of2@100%", "gpu:0/mps:1of2@100%"


@pytest.fixture(autouse=True)
def there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names decide, and whether there is CUDA."""
    monkeypatch.setattr(one_gpu, "gpu_uuid", lambda _: "GPU-0")


def planned(
    acting: tuple[str, ...] = (ACTING,), learning: tuple[str, ...] = (LEARNING,),
    channel: Channel = USUAL, replicas: int = 1,
) -> Plan:  # fmt: skip
    places = (
        Place("actor", ("env", "act"), on=acting, replicas=replicas),
        Place("learner", ("learn",), on=learning),
    )
    return Plan(
        trace(Toy(), 8), places, {"actor -> learner": channel}, launch=launch_named("processes")
    )


def up(plan: Plan) -> Link:
    return next(link for link in links(plan) if link.transfer.source == "actor")


STAYS: dict[str, dict[str, Any]] = {
    "slices of one GPU": {},
    "slices that take turns": {
        "acting": ("gpu:0/shared:0of2@100%",),
        "learning": ("gpu:0/shared:1of2@100%",),
    },
    "one of two actors": {"acting": (ACTING, "gpu:1"), "replicas": 2},
    "the GPU itself, asked for": {
        "acting": ("gpu:0",),
        "learning": ("gpu:0",),
        "channel": Channel(direct=True),
    },
}
GOES: dict[str, tuple[dict[str, Any], str]] = {
    "two GPUs": ({"acting": ("gpu:1",)}, r"two instances on one GPU, and these are on .*gpu:1"),
    "a CPU": ({"acting": ("cpu:0",), "learning": ("cpu:0",)}, "these are processes on cpu:0"),
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
    asked = replace(options.get("channel", USUAL), direct=True)

    def ask() -> None:
        plan = planned(**{**options, "channel": asked})
        stays_on_gpu(plan, up(plan))

    with pytest.raises(PlanError, match=rf"`actor.* -> learner.*` cannot be direct: .*{why}"):
        ask()


def test_nothing_stays_there_that_is_not_to(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(channel=Channel(direct=False))
    assert not stays_on_gpu(plan, up(plan))
    monkeypatch.setattr(one_gpu, "gpu_uuid", lambda _: None)  # of another maker
    assert not stays_on_gpu(planned(), up(planned()))


def test_who_was_not_asked_for_it_goes_as_before() -> None:
    """Between processes on the GPU itself, and at every step of a loop: neither was measured."""
    plan = planned(acting=("gpu:0",), learning=("gpu:0",))
    assert not stays_on_gpu(plan, up(plan))
    places = (
        Place("env", ("env",), on=(ACTING,)),
        Place("rest", ("act", "learn"), on=(LEARNING,)),
    )
    plan = Plan(trace(Toy(), 8), places, launch=launch_named("processes"))
    looping = [link for link in links(plan) if link.transfer.loops]
    assert looping and not any(stays_on_gpu(plan, link) for link in looping)


def test_a_message_without_arrays_goes_through_the_host() -> None:
    plan = planned()
    assert not stays_on_gpu(plan, replace(up(plan), specs=()))


def test_wsl_has_no_memory_to_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.release", lambda: "5.15.90.1-microsoft-standard-WSL2")
    plan = planned(channel=Channel(direct=True))
    with pytest.raises(PlanError, match="cannot share memory of a GPU on WSL"):
        stays_on_gpu(plan, up(plan))


def test_threads_have_nothing_to_be_direct_about() -> None:
    places = (Place("actor", ("env", "act")), Place("learner", ("learn",)))
    with pytest.raises(PlanError, match=r"for processes on one GPU.*are threads on devices with"):
        check(Plan(trace(Toy(), 8), places, {"actor -> learner": Channel(direct=True)}))


def test_what_stays_on_the_gpu_takes_little_of_the_hosts_memory() -> None:
    wheres, kinds = {}, {}
    for way in (True, False):
        plan = planned(channel=Channel(direct=way))
        wheres[way] = where = layout(plan)
        arena, device = Arena.create(where.nbytes), SimpleNamespace(platform="gpu")
        found = pipes_of(plan, "learner", 0, arena, where.pipes, [device])
        kinds[way] = type(found[up(plan).key])
    assert kinds == {True: OnOneGpu, False: SharedMemory}
    assert OnOneGpu.nbytes(replace(up(planned()), specs=large)) == OnOneGpu.nbytes(up(planned()))
    assert SharedMemory.nbytes(replace(up(planned()), specs=large)) > 1 << 20


large = (jax.ShapeDtypeStruct((1 << 20,), "float32"),)


class OnHost(OnOneGpu):
    """Both ends in one process, without a GPU: what is told to the ring is told `later`, if so."""

    later, takes, fails = 0.0, 0.0, ""

    def __init__(self, link: Link) -> None:
        super().__init__(Arena.create(OnOneGpu.nbytes(link)), 0, link, jax.local_devices()[0])
        self._there: dict[int, list[np.ndarray]] = {}
        self._telling: list[threading.Timer] = []

    def settle(self) -> None:
        super().settle()
        if self.fails:
            raise RuntimeError(self.fails)
        for timer in self._telling:
            timer.join()

    def close(self) -> None:
        self._ring.close()

    def _asked(self, name: str, *arguments: Any) -> int:
        return 0

    def _call(self, target: str, makes: Any, number: int, slot: int, given: Any = ()) -> Any:
        def fill(*arrays: Any) -> np.ndarray:
            time.sleep(self.takes)
            self._there[slot] = [np.array(x) for x in arrays]
            if not self.fails:
                tell = (library().hocket_ring_publish, [self._ring.address])
                self._telling.append(threading.Timer(self.later, *tell))
                self._telling[-1].start()
            return np.zeros(1, np.uint32)

        def empty() -> list[np.ndarray]:
            found = self._there.pop(slot)
            library().hocket_ring_release(self._ring.address)
            return found

        return io_callback(fill if given else empty, makes, *given, ordered=False)


def run(monkeypatch: pytest.MonkeyPatch, *, direct: bool = True) -> Any:
    """The state after four iterations of an actor and a learner that is one behind."""
    places = (Place("actor", ("env", "act")), Place("learner", ("learn",)))
    plan = Plan(trace(Toy(), 8), places, {"learner -> actor": Channel(lag=1)})
    if direct:
        monkeypatch.setattr(Threads, "_pipe", lambda _, link: OnHost(link))
    executor = make_executor(plan, 4)
    try:
        executor.start(jax.random.key(3))
        executor.run(2)
        executor.run(2)
        return executor.state()
    finally:
        executor.close()


def test_what_may_be_early_has_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run(monkeypatch, direct=False)
    assert difference(run(monkeypatch), expected) == 0.0


@pytest.mark.parametrize("slow", ["later", "takes"])
def test_a_gpu_that_takes_its_time_is_no_deadlock(
    slow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Be it the program, which the host does not wait for, or its launch, which may compile."""
    monkeypatch.setattr(one_gpu, "SOON", 0.1)
    monkeypatch.setattr(watch, "PATIENCE", 0.5)
    monkeypatch.setattr(OnHost, slow, 1.5)
    run(monkeypatch)


def test_what_failed_on_the_gpu_is_told_by_whoever_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_gpu, "SOON", 0.1)
    monkeypatch.setattr(OnHost, "fails", "CUDA_ERROR_ILLEGAL_ADDRESS")
    with pytest.raises(InstanceError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        run(monkeypatch)


@pytest.mark.parametrize("busy", [True, False])
def test_a_host_that_waits_while_its_gpu_works_is_busy(busy: bool) -> None:
    plan = planned()
    pipe = OnHost(link := up(plan))
    status = new_statuses(plan)[1]
    exchange = Exchange(plan, "learner", 0, {link.key: pipe}, status)
    pipe.later = 0.2
    pipe.send([jnp.ones(x.shape, x.dtype) for x in link.specs])
    pipe.last = SimpleNamespace(is_ready=lambda: not busy)
    exchange.receive(link.transfer, 0)
    assert (status["waited"].sum() > 0) == (not busy)


def test_a_message_is_what_its_link_carries() -> None:
    pipe = OnHost(up(planned()))
    with pytest.raises(ValueError, match=r"`actor/0 -> learner/0` carries .*, found \[\(\(3,\)"):
        pipe.send([jnp.zeros(3)])


@needs_no_gpu
def test_without_a_driver_the_error_says_what_to_do() -> None:
    link = up(planned())
    arena = Arena.create(OnOneGpu.nbytes(link))
    pipe = OnOneGpu(arena, 0, link, SimpleNamespace(local_hardware_id=0))
    with pytest.raises(
        RuntimeError,
        match=rf"`actor/0 -> learner/0` cannot stay on the GPU: .*({NO_DRIVER}).*:direct=false`",
    ):
        pipe.send([])
