"""The ends of links that one instance has, made in the two phases of `Transport`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax

from hocket.cluster.devices import find_devices
from hocket.core.plan.data import Plan
from hocket.runtime.channels import Address, Here, Inbox, Outbox, Transport
from hocket.runtime.channels.choice import transport_of
from hocket.runtime.channels.device_work import DeviceWork
from hocket.runtime.channels.links import Link, LinkKey, links
from hocket.runtime.channels.packing import packing, packs
from hocket.runtime.channels.routes import Route
from hocket.runtime.instance.replicas import home, replica_mesh
from hocket.system.shared_memory import Space

Spaces = Mapping[LinkKey, Space]
"""The part of the shared memory that each link has, of those that need some."""


class Wire(NamedTuple):
    """A link as one of its ends sees it, and what carries it."""

    link: Link
    transport: Transport
    here: Here

    def listen(self) -> Address:
        return self.transport.listen(self.link, self.here)

    def sender(self, address: Address, epoch: int) -> Sender:
        return Sender(self, self.transport.connect(self.link, address, self.here, epoch))

    def receiver(self, address: Address, epoch: int) -> Receiver:
        return Receiver(self, self.transport.connect(self.link, address, self.here, epoch))


class Sender:
    """What sends the arrays of an instance through an outbox, on the host where that wants them."""

    def __init__(self, wire: Wire, box: Any) -> None:
        self.box: Outbox = box
        self.device_ordered = wire.transport.device_ordered
        self._packing = None if wire.transport.on_devices else packing(wire.link.arrays)
        self._packed = wire.link.packed

    def send(self, message: Sequence[Any]) -> None:
        if self._packing:
            message = self._packing.to_slot(message, packed=self._packed)
        self.box.send(message)


class Receiver:
    """What receives a message as an instance takes it: arrays, or a `Packed`."""

    def __init__(self, wire: Wire, box: Any) -> None:
        self.box: Inbox = box
        self._packing = None if wire.transport.on_devices else packing(wire.link.arrays)
        self._packed = wire.link.packed

    def receive(self) -> Any:
        arrays = self.box.receive()
        return self._packing.from_slot(arrays, packed=self._packed) if self._packing else arrays


def wires(
    plan: Plan, place: str, index: int, spaces: Spaces, work: DeviceWork
) -> Iterator[Wire]:  # fmt: skip
    """The ends that one instance has of the links of a plan."""
    devices = _devices(plan, place, index)
    for link in links(plan):
        for sends in (True, False):
            t = link.transfer
            if (place, index) != ((t.source, link.source) if sends else link.end):
                continue
            transport = transport_of(plan, link)
            homes = () if sends or not transport.on_devices else _homes(plan, link)
            here = Here(sends, tuple(devices), tuple(homes), spaces.get(link.key), work)
            yield Wire(_at_end(plan, link, transport, here), transport, here)


def _at_end(plan: Plan, link: Link, transport: Transport, here: Here) -> Link:
    """A link as one end has it, which may pack where the other does not."""
    if transport.on_devices:
        return link
    asked, loops = plan.channel_of(link.transfer).pack, bool(link.transfer.loops)
    packed = packs(asked, here.devices, sends=here.sends, loops=loops)
    return replace(link, packed=packed and packing(link.arrays).pays())


def _devices(plan: Plan, place: str, index: int) -> list[Any]:
    spot = plan.place(place)
    return find_devices(spot.on if place in plan.grouped else spot.share(index))


def _homes(plan: Plan, link: Link) -> list[Any]:
    """How the receiver wants the arrays of a message on its devices."""
    target, route = plan.place(link.transfer.target), Route.of(plan, link.transfer)
    grouped = target.name in plan.grouped
    devices = _devices(plan, *link.end)
    at_once = plan.free.batch if plan.free and route.any else route.sources // route.targets
    several = at_once > 1
    if grouped or several:  # it is put together there first
        return [jax.sharding.SingleDeviceSharding(devices[0])] * len(link.values)
    mesh = replica_mesh(devices, 1)
    return [home(mesh, plan.axes.axis(v), stacked=False) for v in link.values]
