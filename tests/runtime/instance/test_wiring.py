"""The ends of links that an instance has: which, where they put arrays, and who packs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec, SingleDeviceSharding

from hocket import Channel, Free, Pair, Place, Plan, trace
from hocket.runtime.channels.device_work import DeviceWork
from hocket.runtime.channels.links import links
from hocket.runtime.channels.packing import Packed
from hocket.runtime.channels.transports import device, same_device, shared_memory
from hocket.runtime.instance.wiring import End, ends
from hocket.runtime.launch import launch_named
from hocket.system.events import Closed
from hocket.system.shared_memory import MemoryFile, Space
from tests.core.tiny import State, act, env, learn, traced
from tests.runtime.instance.boxes import Box
from tests.toys import Toy

ACT, LEARN = ("env", "act"), ("learn",)
CPUS = jax.local_devices()


def plan_of(acting: Any = (), learning: Any = (), replicas: int = 1, **options: Any) -> Plan:
    places = (Place("actor", ACT, acting, replicas=replicas), Place("learner", LEARN, learning))
    return Plan(trace(Toy(), 8), places, **options)


def ends_of(plan: Plan, place: str, index: int = 0) -> list[End]:
    return list(ends(plan, place, index, {}, DeviceWork({})))


def homes_of(plan: Plan) -> tuple[Any, ...]:
    """Return where the learner wants what actor 0 sends."""
    return next(end for end in ends_of(plan, "learner") if not end.sends).here.homes


def test_an_instance_has_the_ends_of_its_own_links() -> None:
    plan = plan_of(replicas=2)
    for index in range(2):
        up, down = sorted(ends_of(plan, "actor", index), key=lambda end: end.sends, reverse=True)
        assert up.sends and up.link.source == index and up.away == ("learner", 0)
        assert not down.sends and down.link.end == ("actor", index) and down.away == ("learner", 0)
        assert up.nbytes == 3 * 4 * 4 * 4 and up.transport is same_device.TRANSPORT
    learner = ends_of(plan, "learner")
    assert sorted((end.sends, end.away) for end in learner) == [
        (False, ("actor", 0)), (False, ("actor", 1)),
        (True, ("actor", 0)), (True, ("actor", 1)),
    ]  # fmt: skip


def test_an_end_knows_its_devices_and_its_memory() -> None:
    plan = plan_of(["cpu:1"], ["cpu:2"])
    (up, down) = sorted(ends_of(plan, "actor"), key=lambda end: end.sends, reverse=True)
    assert up.here.devices == down.here.devices == (CPUS[1],)
    assert up.transport is device.TRANSPORT and up.here.homes == () and up.here.space is None
    apart = plan_of(launch=launch_named("processes"))
    spaces = {link.key: Space(MemoryFile.create(4096), 0, 4096) for link in links(apart)}
    for end in ends(apart, "actor", 0, spaces, DeviceWork({})):
        assert end.transport is shared_memory.TRANSPORT
        assert end.here.space is spaces[end.link.key] and end.here.homes == ()


def test_what_arrives_is_split_over_the_receivers_devices() -> None:
    (home,) = homes_of(plan_of(["cpu:0"], ["cpu:1", "cpu:2"]))
    assert home.device_set == set(CPUS[1:3])
    assert home.spec == PartitionSpec(None, "devices")  # the points are [time, envs, 4]


@pytest.mark.parametrize(
    "options",
    [
        {"replicas": 2},
        {"replicas": 2, "schedule": Free(Pair("learner", "actor", max_age=1, batch=2))},
    ],
)
def test_what_is_joined_arrives_on_one_device(options: Any) -> None:
    """A part of a value may have too few environments to be split over all devices."""
    homes = homes_of(plan_of(["cpu:0"], ["cpu:1", "cpu:2"], **options))
    assert homes == (SingleDeviceSharding(CPUS[1]),)


def run(s: State) -> tuple[State, State]:
    action = act(s["x"])
    x = env(s["x"], action)
    return {"w": learn(s["w"], x + action), "x": x}, {"loss": learn(s["w"], action)}


def in_processes(pack: bool | None) -> tuple[End, End]:
    """Return the ends of a link with two small arrays, the sender's first."""
    places = (Place("actor", ACT), Place("learner", LEARN))
    plan = Plan(
        traced(run, "w x"), places, {"actor -> learner": Channel(pack=pack)},
        launch=launch_named("processes"),
    )  # fmt: skip
    sending, receiving = (
        next(end for end in ends_of(plan, place) if end.sends == sends)
        for place, sends in (("actor", True), ("learner", False))
    )
    assert len(sending.link.arrays) == 2
    return sending, receiving


@pytest.mark.parametrize(("pack", "packed"), [(None, (False, True)), (True, (True, True)),
                                              (False, (False, False))])  # fmt: skip
def test_each_end_packs_as_its_devices_like_it(pack: bool | None, packed: Any) -> None:
    assert tuple(end.link.packed for end in in_processes(pack)) == packed


@pytest.mark.parametrize("pack", [True, False])
def test_a_saved_message_is_as_one_that_was_received(pack: bool) -> None:
    sending, receiving = in_processes(pack)
    message = [jnp.full(x.shape, k, x.dtype) for k, x in enumerate(sending.link.arrays)]
    sending.box = receiving.box = Box()
    sending.send(message)
    ((sent, *_),) = sending.box.messages
    assert type(sent) is np.ndarray and (sent.dtype == np.uint32) == pack
    for arrived in (receiving.receive(), receiving.message(message)):
        assert isinstance(arrived, Packed) == pack
        for x, y in zip(arrived, message, strict=True):
            np.testing.assert_array_equal(x, y)


def test_an_end_may_be_closed_before_it_is_connected() -> None:
    end = next(end for end in ends_of(plan_of(), "learner") if not end.sends)
    end.close()
    end.connect(end.listen(), 1)
    end.close()
    with pytest.raises(Closed):
        end.receive()
