"""The channels of one instance, in two phases: receivers listen, then everybody connects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import jax

from hocket.cluster.devices import find_devices
from hocket.core.plan.data import Plan
from hocket.runtime.channels.choice import empty_pipes, pipes_of
from hocket.runtime.channels.links import Link, Route, links
from hocket.runtime.channels.transports.device import DeviceToDevice
from hocket.runtime.channels.transports.same_device import SameDevice
from hocket.runtime.instance.interpreter import Instance
from hocket.runtime.launch.shared import Shared

Key: TypeAlias = tuple[int, int, int]  # (transfer, source instance, target instance)


def listen(instance: Instance, shared: Shared) -> dict[Key, Any]:
    """Be ready for messages: an address for every link that ends at this instance."""
    plan, me = instance.plan, (instance.place, instance.index)
    if plan.launch.one_process:
        return {link.key: _here(instance, link) for link in links(plan) if link.end == me}
    if shared.arena and shared.layout:
        mine = [(link, offset) for link, offset in shared.layout.pipes if link.end == me]
        empty_pipes(plan, shared.arena, mine)
    return {}


def connect(instance: Instance, shared: Shared, addresses: Mapping[Key, Any]) -> dict[Key, Any]:
    """What this instance sends through and receives from, given the addresses of all."""
    plan, place, index = instance.plan, instance.place, instance.index
    if plan.launch.one_process:
        mine = [
            link for link in links(plan)
            if (place, index) in ((link.transfer.source, link.source), link.end)
        ]  # fmt: skip
        return {link.key: addresses[link.key] for link in mine}
    if not (shared.arena and shared.layout):
        return {}
    devices = find_devices(plan.place(place).share(index))
    return dict(pipes_of(plan, place, index, shared.arena, shared.layout.pipes, devices))


def _here(target: Instance, link: Link) -> SameDevice:
    """The transport between two ends in this process."""
    plan, t = target.plan, link.transfer
    delay = plan.channel_of(t).delay
    if _devices(plan, t.source, link.source) == target.mesh.devices.ravel().tolist():
        return SameDevice(link.slots, delay)
    route = Route.of(plan, t)
    several = route.sources > route.targets and (not route.any or plan.batch > 1)
    if target.grouped or several:  # it is put together there first
        first = jax.sharding.SingleDeviceSharding(target.mesh.devices.flat[0])
        return DeviceToDevice(link.slots, [first] * len(link.values), delay)
    return DeviceToDevice(link.slots, [target.home(v) for v in link.values], delay)


def _devices(plan: Plan, place: str, index: int) -> list[Any]:
    spot = plan.place(place)
    return find_devices(spot.on if place in plan.grouped else spot.share(index))
