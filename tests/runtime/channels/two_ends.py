"""A link from an actor to a learner, with both ends in this process, for tests of transports."""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp

from hocket import Channel, Place, Plan, trace
from hocket.runtime.channels import Here
from hocket.runtime.channels.links import Link, links
from hocket.runtime.channels.transports import device, same_device, shared_memory, tcp
from hocket.runtime.instance.wiring import End
from hocket.runtime.launch import launch_named
from hocket.system.shared_memory import MemoryFile, Space
from tests.toys import Toy

ACT, LEARN = ("env", "act"), ("learn",)
KINDS = {
    "same": same_device.TRANSPORT,
    "device": device.TRANSPORT,
    "shm": shared_memory.TRANSPORT,
    "tcp": tcp.TRANSPORT,
}


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
    if kind == "tcp":
        greeted(here, there)
    return here, there


def greeted(*ends: End) -> None:
    """Wait until link ends over TCP have greeted each other, which `connect` does not wait for."""
    deadline = time.monotonic() + 60
    while not all(end.box._carrier.is_connected for end in ends):
        assert time.monotonic() < deadline
        time.sleep(0.001)


def message(number: float) -> list[Any]:
    """Return a message of `actor -> learner`: the points of three steps."""
    return [jnp.full((3, 8, 4), float(number))]
