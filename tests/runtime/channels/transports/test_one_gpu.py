"""The choice of messages that stay on a GPU. `cluster/gpu_checks.py` sends some on a real one."""

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
from hocket.runtime.channels import Ends, Here
from hocket.runtime.channels.choice import transport_of
from hocket.runtime.channels.links import Link, links
from hocket.runtime.channels.transports import one_gpu, shared_memory
from hocket.runtime.channels.transports.one_gpu import OneGpu, OnOneGpu
from hocket.runtime.instance import wiring
from hocket.runtime.instance.instance import Instance
from hocket.runtime.launch import launch_named, watch
from hocket.runtime.launch.memory import memory_map
from hocket.runtime.launch.watch import InstanceError
from hocket.runtime.observe.status import new_statuses
from hocket.system.events import ThreadEvent
from hocket.system.native import library
from hocket.system.shared_memory import MemoryFile, Space
from hocket.testing import difference
from hocket.training.loop import make_executor
from tests.runtime.without_gpu import NO_DRIVER, needs_no_gpu
from tests.toys import Toy

USUAL, ASKED = Channel(), Channel(transport="one_gpu")
ACTING, LEARNING = "gpu:0/mps:0of2@100%", "gpu:0/mps:1of2@100%"


@pytest.fixture(autouse=True)
def there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that there is CUDA, so that only the names of devices decide."""
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


def stays_on_gpu(plan: Plan, link: Link) -> bool:
    return transport_of(plan, link) is one_gpu.TRANSPORT


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
        "channel": ASKED,
    },
}
GOES: dict[str, tuple[dict[str, Any], str]] = {
    "two GPUs": ({"acting": ("gpu:1",)}, r"two instances on one GPU, and these are on .*gpu:1"),
    "a CPU": (
        {"acting": ("cpu:0",), "learning": ("cpu:0",)},
        "on one GPU, and these are on cpu:0",
    ),
    "a GPU and the host": ({"acting": ("cpu:0",)}, "these are on cpu:0, gpu:0"),
    "MIG": ({"acting": ("gpu:0/mig:0of2@50%",), "learning": ("gpu:0/mig:1of2@50%",)}, "of MIG do"),
    "a delay": ({"channel": Channel(delay=0.1)}, "with a delay waits in the host's memory"),
    "no names": ({"acting": ()}, "`actor` must name exactly one device"),
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
    asked = replace(options.get("channel", USUAL), transport="one_gpu")
    plan = planned(**{**options, "channel": asked})
    with pytest.raises(PlanError, match=rf"`actor -> learner` cannot use `one_gpu`: .*{why}"):
        transport_of(plan, up(plan))


def test_nothing_stays_there_that_is_not_to(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(channel=Channel(transport="shared_memory"))
    assert not stays_on_gpu(plan, up(plan))
    monkeypatch.setattr(one_gpu, "gpu_uuid", lambda _: None)  # a GPU that is not CUDA's
    assert not stays_on_gpu(planned(), up(planned()))


def test_who_was_not_asked_for_it_goes_as_before() -> None:
    """Neither whole GPUs nor messages in loops were measured, so they have to be asked for."""
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
    """Also where it was asked for."""
    for channel in (USUAL, ASKED):
        plan = planned(channel=channel)
        assert not stays_on_gpu(plan, replace(up(plan), arrays=()))


def test_wsl_has_no_memory_to_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.release", lambda: "5.15.90.1-microsoft-standard-WSL2")
    plan = planned(channel=ASKED)
    with pytest.raises(PlanError, match="cannot share memory of a GPU on WSL"):
        transport_of(plan, up(plan))


def test_what_stays_on_the_gpu_takes_little_of_the_hosts_memory() -> None:
    large = (jax.ShapeDtypeStruct((1 << 20,), "float32"),)
    rooms = {}
    for name, transport in (("one_gpu", one_gpu), ("shared_memory", shared_memory)):
        plan = planned(channel=Channel(transport=name))
        link = up(plan)
        assert memory_map(plan).links[link.key][1] == transport.TRANSPORT.room(link)
        rooms[name] = [transport.TRANSPORT.room(replace(link, arrays=x)) for x in ((), large)]
    assert rooms["one_gpu"][0] == rooms["one_gpu"][1] and rooms["shared_memory"][1] > 1 << 20


class OnHost(OnOneGpu):
    """An end of a link in one process without a GPU, which tells the ring `later` seconds late."""

    later, takes, fails = 0.0, 0.0, ""

    def __init__(self, file: MemoryFile, link: Link, there: dict[int, list[np.ndarray]]) -> None:
        super().__init__(file, 0, link, jax.local_devices()[0])
        self._there = there
        self._telling: list[threading.Timer] = []

    def settle(self) -> None:
        super().settle()
        if self.fails:
            raise RuntimeError(self.fails)
        for timer in self._telling:
            timer.join()

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
            arrays = self._there.pop(slot)
            library().hocket_ring_release(self._ring.address)
            return arrays

        return io_callback(fill if given else empty, makes, *given, ordered=False)


class HostInstead(OneGpu):
    """The transport with those ends."""

    def why_not(self, link: Link, ends: Ends) -> str:
        return ""

    def listen(self, link: Link, here: Here) -> Any:
        return MemoryFile.create(OnOneGpu.nbytes(link)), {}

    def connect(self, link: Link, address: Any, here: Here, epoch: int) -> OnHost:
        file, there = address
        end = OnHost(file, link, there)
        end.begin(here)
        return end


def run(monkeypatch: pytest.MonkeyPatch, *, direct: bool = True, half: int = 2) -> Any:
    """Return the state of a learner and an actor with a lag of one after two blocks."""
    places = (Place("actor", ("env", "act")), Place("learner", ("learn",)))
    plan = Plan(trace(Toy(), 8), places, {"learner -> actor": Channel(lag=1)})
    if direct:
        monkeypatch.setattr(wiring, "transport_of", lambda *_: HostInstead())
    executor = make_executor(plan, 4)
    try:
        executor.start(jax.random.key(3))
        executor.run(half)
        executor.run(half)
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
    """The program may be slow, which the host does not wait for, or its launch, which compiles."""
    monkeypatch.setattr(one_gpu, "SOON", 0.1)
    monkeypatch.setattr(watch, "PATIENCE", 0.5)
    monkeypatch.setattr(OnHost, slow, 1.2)
    run(monkeypatch, half=1)


def test_what_failed_on_the_gpu_is_told_by_whoever_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_gpu, "SOON", 0.1)
    monkeypatch.setattr(OnHost, "fails", "CUDA_ERROR_ILLEGAL_ADDRESS")
    with pytest.raises(InstanceError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        run(monkeypatch)


@pytest.mark.parametrize("busy", [True, False])
def test_a_host_that_waits_while_its_gpu_works_is_busy(
    busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, transport = planned(), HostInstead()
    monkeypatch.setattr(wiring, "transport_of", lambda *_: transport)
    status = new_statuses(plan)[1]
    learner = Instance(plan, "learner", 0, status)
    link, addresses = up(plan), learner.listen()
    down = next(link for link in links(plan) if link.transfer.source == "learner")
    learner.connect({**addresses, down.key: transport.listen(down, Here(sends=False))}, 1)
    sender = transport.connect(link, addresses[link.key], Here(sends=True), 1)
    sender.later = 0.2
    sender.send([jnp.ones(x.shape, x.dtype) for x in link.arrays])
    receiver = learner.inbox.ends[link.transfer.id, 0]
    learner.account.work.begun(receiver.box, SimpleNamespace(is_ready=lambda: not busy))
    learner.inbox.receive(link.transfer)
    assert (status["waited"].sum() > 0) == (not busy)


def on_host() -> OnHost:
    link = up(planned())
    return OnHost(MemoryFile.create(OnOneGpu.nbytes(link)), link, {})


def test_a_message_is_what_its_link_carries() -> None:
    with pytest.raises(ValueError, match=r"`actor/0 -> learner/0` carries .*, found \[\(\(3,\)"):
        on_host().send([jnp.zeros(3)])


@needs_no_gpu
def test_without_a_driver_the_error_says_what_to_do() -> None:
    link = up(planned())
    room = one_gpu.TRANSPORT.room(link)
    device = SimpleNamespace(local_hardware_id=0)
    here = Here(sends=True, devices=(device,), space=Space(MemoryFile.create(room), 0, room))
    box = OneGpu().connect(link, None, here, 1)
    with pytest.raises(
        RuntimeError,
        match=rf"`actor/0 -> learner/0` cannot stay on the GPU: .*({NO_DRIVER}).*:direct=false`",
    ):
        box.send([])


def test_an_epoch_uses_the_memory_of_the_one_before() -> None:
    """The memory is on the GPU, and the other process has opened it."""
    transport, link = OneGpu(), up(planned())
    room = transport.room(link)
    space, devices = Space(MemoryFile.create(room), 0, room), tuple(jax.local_devices()[:1])
    here, there = (Here(sends, devices, space=space) for sends in (True, False))
    first = [transport.connect(link, None, end, 1) for end in (here, there)]
    first[0].close()
    transport.listen(link, there)
    second = [transport.connect(link, None, end, 2) for end in (here, there)]
    assert all(a is b for a, b in zip(first, second, strict=True))
    assert first[0] is not first[1] and not second[1].ready()


def test_an_event_for_what_the_gpu_tells_the_ring() -> None:
    link, there = up(planned()), {}
    file = MemoryFile.create(OnOneGpu.nbytes(link))
    sender, receiver = (OnHost(file, link, there) for _ in range(2))
    event = ThreadEvent()
    receiver.wake(event)
    sender.send([jnp.ones(x.shape, x.dtype) for x in link.arrays])
    event.wait(0)
    assert event.count() > 0 and receiver.ready()
    receiver.close()
