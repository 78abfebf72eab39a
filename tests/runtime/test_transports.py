"""Every transport hands over what it was given; which one, depends on where the two ends are."""

from __future__ import annotations

import threading
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hocket import Channel, Place, Plan, trace
from hocket.runtime.channels import Pipe
from hocket.runtime.channels.links import Link, links
from hocket.runtime.channels.transports.device import DeviceToDevice
from hocket.runtime.channels.transports.same_device import SameDevice
from hocket.runtime.channels.transports.shared_memory import SharedMemory
from hocket.runtime.host_calls.services import Services
from hocket.runtime.launch.crew import Crew
from hocket.system.events import Closed
from hocket.system.shared_memory import Arena
from tests.toys import Toy

ACT, LEARN = ("env", "act"), ("learn",)


def planned(delay: float = 0.0, learner: tuple[str, ...] = ("cpu:0",)) -> Plan:
    places = (Place("actor", ACT, on=("cpu:0",)), Place("learner", LEARN, on=learner))
    return Plan(trace(Toy(), 8), places, {"actor -> learner": Channel(2, delay=delay)})


def upwards(plan: Plan) -> Link:
    return next(link for link in links(plan) if link.transfer.source == "actor")


def shared(delay: float = 0.0) -> SharedMemory:
    link = upwards(planned(delay))
    return SharedMemory(Arena.create(SharedMemory.nbytes(link, delay)), 0, link, delay)


def pipes(delay: float = 0.0) -> dict[str, Pipe]:
    home = jax.sharding.SingleDeviceSharding(jax.local_devices()[1])
    return {
        "same": SameDevice(2, delay),
        "device": DeviceToDevice(2, [home], delay),
        "shm": shared(delay),
    }


def message(number: float) -> list[Any]:
    """As `actor -> learner` has it: the points of three steps."""
    return [jnp.full((3, 8, 4), float(number))]


@pytest.mark.parametrize("kind", ["same", "device", "shm"])
def test_first_in_first_out_with_back_pressure(kind: str) -> None:
    pipe = pipes()[kind]
    sender = threading.Thread(target=lambda: [pipe.send(message(k)) for k in range(5)])
    sender.start()
    sender.join(0.2)
    assert sender.is_alive()  # there is room for two, and nobody has read one
    found = [float(np.asarray(pipe.receive()[0])[0, 0, 0]) for _ in range(5)]
    sender.join()
    assert found == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert pipe.waited[0] > 0


@pytest.mark.parametrize("kind", ["same", "device", "shm"])
def test_a_delay_is_how_long_a_message_takes(kind: str) -> None:
    pipe = pipes(delay=0.05)[kind]
    start = time.perf_counter()
    pipe.send(message(1.0))
    pipe.send(message(2.0))  # the sender goes on
    for _ in range(2):
        pipe.receive()
        assert time.perf_counter() - start >= 0.05


def test_on_one_device_nothing_is_copied() -> None:
    (x,), pipe = message(1.0), SameDevice(1)
    pipe.send([x])
    assert pipe.receive()[0] is x


def test_between_devices_an_array_arrives_where_it_is_wanted() -> None:
    pipe = pipes()["device"]
    pipe.send(message(1.0))
    assert pipe.receive()[0].devices() == {jax.local_devices()[1]}


def test_what_was_received_outlives_its_slot() -> None:
    """JAX takes aligned memory as it is, so it must not be the ring's."""
    pipe = shared()
    pipe.send(message(1.0))
    (x,) = (jnp.asarray(x) for x in pipe.receive())
    for k in (2.0, 3.0):
        pipe.send(message(k))
        pipe.receive()
    assert (np.asarray(x) == 1.0).all()


def test_closing_wakes_whoever_waits() -> None:
    pipe, ended = SameDevice(1), []

    def wait() -> None:
        try:
            pipe.receive()
        except Closed:
            ended.append(True)

    waiter = threading.Thread(target=wait)
    waiter.start()
    pipe.close()
    waiter.join()
    assert ended == [True]


@pytest.mark.parametrize(
    ("learner", "kind"), [(("cpu:0",), SameDevice), (("cpu:1",), DeviceToDevice)]
)
def test_the_transport_is_chosen_by_where_the_ends_are(learner: Any, kind: type) -> None:
    crew = Crew(planned(learner=learner))
    first = dict(enumerate(jax.tree.leaves(Toy().init(jax.random.key(0), 8))))
    crew.load(first, {}, Services(crew.plan))
    pipes = [pipe for worker in crew.workers for pipe in worker.pipes.values()]
    assert {type(pipe) for pipe in pipes} == {kind}
    crew.close()
