"""Every transport hands over what it was given, and a link's ends decide which one carries it."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hocket import Channel, Free, Pair, Place, Plan, PlanError, trace
from hocket.core.plan.device_id import DeviceId
from hocket.runtime.channels import Ends, Here, Transport
from hocket.runtime.channels.choice import TRANSPORTS, check_transports, ends_of, transport_of
from hocket.runtime.channels.links import Link, links
from hocket.runtime.channels.transports import device, same_device, shared_memory
from hocket.runtime.instance.wiring import End
from hocket.runtime.launch import launch_named
from hocket.system.events import Closed, ThreadEvent
from hocket.system.shared_memory import MemoryFile, Space
from hocket.training.loop import make_executor
from tests.toys import Toy

ACT, LEARN = ("env", "act"), ("learn",)
CPU = (DeviceId("cpu", 0),)
KINDS = {"same": same_device.TRANSPORT, "device": device.TRANSPORT, "shm": shared_memory.TRANSPORT}


def planned(
    delay: float = 0.0, learner: tuple[str, ...] = ("cpu:0",), transport: str = "",
    launch: str = "threads",
) -> Plan:  # fmt: skip
    places = (Place("actor", ACT, on=("cpu:0",)), Place("learner", LEARN, on=learner))
    channels = {"actor -> learner": Channel(2, delay=delay, transport=transport)}
    return Plan(trace(Toy(), 8), places, channels, launch=launch_named(launch))


def upwards(plan: Plan) -> Link:
    return next(link for link in links(plan) if link.transfer.source == "actor")


def connected(kind: str, delay: float = 0.0) -> tuple[End, End]:
    """Return both ends of a link, in this process."""
    link, transport = upwards(planned(delay)), KINDS[kind]
    room = transport.room(link)
    space = Space(MemoryFile.create(room), 0, room) if room else None
    homes = (jax.sharding.SingleDeviceSharding(jax.local_devices()[1]),)
    there = End(link, transport, Here(sends=False, homes=homes, space=space))
    here = End(link, transport, Here(sends=True, space=space))
    address = there.listen()
    for end in (here, there):
        end.connect(address, 1)
    return here, there


def message(number: float) -> list[Any]:
    """Return a message of `actor -> learner`: the points of three steps."""
    return [jnp.full((3, 8, 4), float(number))]


@pytest.mark.parametrize("kind", KINDS)
def test_first_in_first_out_with_back_pressure(kind: str) -> None:
    sender, receiver = connected(kind)
    thread = threading.Thread(target=lambda: [sender.send(message(k)) for k in range(5)])
    thread.start()
    while sender.box.sent < 2:  # there is room for two, though nobody has read one
        thread.join(0.05)
    thread.join(0.2)
    assert thread.is_alive() and sender.box.sent == 2 and receiver.box.ready()
    received = [float(np.asarray(next(iter(receiver.receive())))[0, 0, 0]) for _ in range(5)]
    thread.join()
    assert received == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert sender.box.waited_ns > 0
    assert (sender.box.sent, receiver.box.taken) == (5, 5) and not receiver.box.ready()


@pytest.mark.parametrize("kind", KINDS)
def test_a_delay_is_how_long_a_message_takes(kind: str) -> None:
    sender, receiver = connected(kind, delay=0.05)
    start = time.perf_counter()
    sender.send(message(1.0))
    sender.send(message(2.0))  # the sender goes on
    assert not receiver.box.ready()
    for _ in range(2):
        receiver.receive()
        assert time.perf_counter() - start >= 0.05


def test_on_one_device_nothing_is_copied() -> None:
    (x,), (sender, receiver) = message(1.0), connected("same")
    sender.send([x])
    assert receiver.receive()[0] is x


def test_between_devices_an_array_arrives_where_it_is_wanted() -> None:
    sender, receiver = connected("device")
    sender.send(message(1.0))
    assert receiver.receive()[0].devices() == {jax.local_devices()[1]}


def test_what_was_received_outlives_its_slot() -> None:
    """The ring fills its slots again, and JAX takes aligned memory without a copy."""
    sender, receiver = connected("shm")
    sender.send(message(1.0))
    (x,) = (jnp.asarray(x) for x in receiver.receive())
    for k in (2.0, 3.0):
        sender.send(message(k))
        receiver.receive()
    assert (np.asarray(x) == 1.0).all()


@pytest.mark.parametrize("closer", ["sender", "receiver"])
@pytest.mark.parametrize("kind", KINDS)
def test_closing_wakes_whoever_waits(kind: str, closer: str) -> None:
    sender, receiver = connected(kind)
    ended = []

    def wait() -> None:
        try:
            receiver.receive()
        except Closed:
            ended.append(True)

    waiter = threading.Thread(target=wait)
    waiter.start()
    (sender if closer == "sender" else receiver).box.close()
    waiter.join()
    assert ended == [True]
    with pytest.raises(Closed):
        sender.send(message(1.0))


@pytest.mark.parametrize("kind", KINDS)
def test_one_event_for_whatever_arrives(kind: str) -> None:
    event, pairs = ThreadEvent(), [connected(kind) for _ in range(3)]
    for _, receiver in pairs:
        receiver.box.wake(event)
    for sender, receiver in pairs:
        count = event.count()
        sender.send(message(1.0))
        deadline = time.monotonic() + 10.0
        while event.count() == count and time.monotonic() < deadline:
            event.wait(count)
        assert event.count() > count and receiver.box.ready()
        receiver.receive()


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_an_earlier_epoch_arrives(kind: str) -> None:
    link, transport = upwards(planned()), KINDS[kind]
    room = transport.room(link)
    space = Space(MemoryFile.create(room), 0, room) if room else None
    sender, receiver = (End(link, transport, Here(sends, space=space)) for sends in (True, False))
    for epoch in (1, 2):
        address = receiver.listen()
        for end in (sender, receiver):
            end.connect(address, epoch)
        assert not receiver.box.ready() and sender.box.sent == receiver.box.taken == 0
        sender.send(message(float(epoch)))
        sender.box.close()


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({}, same_device),
        ({"learner": ("cpu:1",)}, device),
        ({"transport": "device"}, device),
        ({"launch": "processes"}, shared_memory),
    ],
)
def test_the_transport_is_chosen_by_where_the_ends_are(options: Any, kind: Any) -> None:
    plan = planned(**options)
    assert transport_of(plan, upwards(plan)) is kind.TRANSPORT


def test_every_transport_is_whole_and_has_a_place_in_the_order() -> None:
    every = [TRANSPORTS[name] for name in TRANSPORTS.names]
    assert all(isinstance(transport, Transport) for transport in every)
    assert len({transport.preference for transport in every}) == len(every) >= 4


REFUSED = {
    "shared_memry": r"`actor -> learner`: unknown transport `shared_memry`.*`shared_memory`",
    "shared_memory": r"cannot use `shared_memory`: .*share no memory\..*name another: device",
    "one_gpu": r"cannot use `one_gpu`: it is for two processes",
    "hocket.core.plan.data:Plan": r"the transport `\S*:Plan` cannot be made: missing .* 'graph'",
    "hocket.runtime.launch:HERE": r"`\S*:HERE` is no transport: it has no `preference`, .*`listen`",
    "nowhere.py:X": r"`actor -> learner`: there is no file `nowhere.py`",
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_anything_starts(name: str) -> None:
    with pytest.raises(PlanError, match=REFUSED[name]):
        check_transports(planned(transport=name))
    with pytest.raises(PlanError, match=REFUSED[name]):
        make_executor(planned(transport=name), 1)


def test_a_free_channel_goes_its_own_way() -> None:
    places = (Place("actor", ACT), Place("learner", LEARN))
    named = {"learner -> actor": Channel(transport="device")}
    plan = Plan(trace(Toy(), 8), places, named, schedule=Free(Pair("learner", "actor", max_age=1)))
    with pytest.raises(PlanError, match=r"`learner -> actor` names the transport `device`"):
        check_transports(plan)


def test_where_nothing_can_carry_a_link_all_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, ends = planned(), Ends(CPU, CPU, one_process=False, share_memory=False)
    monkeypatch.setattr("hocket.runtime.channels.choice.ends_of", lambda *_: ends)
    with pytest.raises(PlanError, match=r"nothing can carry `actor/0 -> learner/0` w") as caught:
        transport_of(plan, upwards(plan))
    assert all(f"  {name}: " in str(caught.value) for name in TRANSPORTS.names)


def test_what_a_message_is_made_of() -> None:
    """A slot has the same bytes whether an end packs or not."""
    arrays = (jax.ShapeDtypeStruct((3,), "bool"), jax.ShapeDtypeStruct((), jax.random.key(0).dtype))
    link = replace(upwards(planned()), arrays=arrays)
    packed = replace(link, packed=True)
    assert [spec for spec, _ in packed.specs] == [(32,)]
    assert link.message_nbytes == packed.message_nbytes == 128
    buffer = bytearray(128)
    flags, key = link.views(buffer)
    flags[:], key[:] = [True, False, True], [7, 8]
    (words,) = packed.views(buffer)
    assert words[0] == 0x010001 and list(words[16:18]) == [7, 8]


def test_what_is_named_is_what_carries() -> None:
    plan = planned(transport="device")
    assert ends_of(plan, upwards(plan)).one_process
    executor: Any = make_executor(plan, 1)
    executor.start(jax.random.key(0))
    actor = executor.crew.instances[0]
    carried = {end.link.transfer.source: end.transport for end in actor.ends}
    assert carried == {"actor": device.TRANSPORT, "learner": same_device.TRANSPORT}
    executor.close()
