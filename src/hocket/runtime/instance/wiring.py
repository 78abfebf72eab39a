"""The ends of one instance's links. First all receivers listen, then all ends connect."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax

from hocket.cluster.devices import find_devices
from hocket.core.plan.data import Plan
from hocket.runtime.channels import Address, Here, Transport
from hocket.runtime.channels.choice import devices_of, transport_of
from hocket.runtime.channels.device_work import DeviceWork
from hocket.runtime.channels.links import Link, LinkKey, links
from hocket.runtime.channels.packing import packing, packs
from hocket.runtime.instance.replicas import home, replica_mesh
from hocket.system.shared_memory import Space

Spaces = Mapping[LinkKey, Space]
"""Each link's part of the shared memory. A link that needs none has no entry."""


class End:
    """One end of a link. It sends or receives an instance's arrays, and packs them if needed."""

    def __init__(self, link: Link, transport: Transport, here: Here) -> None:
        self.link, self.transport, self.here, self.sends = link, transport, here, here.sends
        self._packing = None if transport.on_devices else packing(link.arrays)
        self.nbytes = sum(x.size * x.dtype.itemsize for x in link.arrays)
        self.box: Any = None

    @functools.cached_property
    def away(self) -> tuple[str, int]:
        """The place and the index of the instance at the other end."""
        return self.link.end if self.sends else (self.link.transfer.source, self.link.source)

    def listen(self) -> Address:
        return self.transport.listen(self.link, self.here)

    def connect(self, address: Address, epoch: int) -> None:
        self.box = self.transport.connect(self.link, address, self.here, epoch)

    def close(self) -> None:
        if self.box is not None:
            self.box.close()

    def send(self, message: Sequence[Any]) -> None:
        if self._packing:
            message = self._packing.to_slot(message, packed=self.link.packed)
        self.box.send(message)

    def receive(self) -> Any:
        """Receive a message: a `Packed` if this end packs, or else a sequence of arrays."""
        arrays, packed = self.box.receive(), self.link.packed
        return self._packing.from_slot(arrays, packed=packed) if self._packing else arrays

    def message(self, arrays: Sequence[Any]) -> Any:
        """Make saved arrays into a message like those that `receive` returns."""
        if not (self._packing and self.link.packed):
            return arrays
        return self._packing.from_slot(self._packing.to_slot(arrays, packed=True), packed=True)


def ends(plan: Plan, place: str, index: int, spaces: Spaces, work: DeviceWork) -> Iterator[End]:
    """Yield the end of each link that begins or ends at one instance."""
    devices, me = tuple(find_devices(devices_of(plan, place, index))), (place, index)
    for link in links(plan):
        for sends in (True, False):
            if me != ((link.transfer.source, link.source) if sends else link.end):
                continue
            transport = transport_of(plan, link)
            homes = () if sends or not transport.on_devices else tuple(_homes(plan, link))
            here = Here(sends, devices, homes, spaces.get(link.key), work)
            yield End(_at_end(plan, link, transport, here), transport, here)


def _at_end(plan: Plan, link: Link, transport: Transport, here: Here) -> Link:
    """Return the link as one end sees it: `packed` is True if this end packs small arrays."""
    if transport.on_devices:
        return link
    asked, loops = plan.channel_of(link.transfer).pack, bool(link.transfer.loops)
    packed = packs(asked, here.devices, sends=here.sends, loops=loops)
    return replace(link, packed=packed and packing(link.arrays).pays())


def _homes(plan: Plan, link: Link) -> list[Any]:
    """Return the sharding that the receiver wants for each array of a message."""
    t, free = link.transfer, plan.free
    devices = find_devices(devices_of(plan, *link.end))
    at_once = plan.instances(t.source) // plan.instances(t.target)
    if free and free.is_any(t):
        at_once = free.batch
    # The parts in several messages are joined on one device, and only then split over all devices.
    if t.target in plan.grouped or at_once > 1:
        return [jax.sharding.SingleDeviceSharding(devices[0])] * len(link.values)
    mesh = replica_mesh(devices, 1)
    return [home(mesh, plan.axes.axis(v), stacked=False) for v in link.values]
