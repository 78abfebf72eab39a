"""Refuse a plan that cannot run here. Every way to run a plan begins with `refuse`."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

from hocket.cluster.devices import Cluster, find_devices, host_memory, id_of
from hocket.cluster.slices import read_slice
from hocket.core.plan.data import Plan
from hocket.core.plan.device_id import DeviceId
from hocket.core.plan.memory import footprint
from hocket.errors import PlanError, unknown
from hocket.runtime.averaging.known import check_averages
from hocket.runtime.channels.choice import check_transports
from hocket.runtime.launch import launcher_of
from hocket.system.platforms import HOST
from hocket.system.text import bytes_text


def refuse(plan: Plan, cluster: Cluster | None = None) -> None:
    """Refuse a plan if its launcher, devices, memory, links or averages are not available here."""
    launcher_of(plan)
    if plan.launch.nodes:
        _check_nodes(plan, cluster)
    else:
        _check_hardware(plan)
    check_transports(plan)
    check_averages(plan)


def _check_nodes(plan: Plan, cluster: Cluster | None) -> None:
    """Refuse devices that the nodes of a cluster do not have, and places that do not fit there."""
    if cluster is None:
        return
    devices = {device.id: device for device in cluster.devices}
    memory, needed = footprint(plan), defaultdict[DeviceId, int](int)
    for place in plan.places:
        for index in range(plan.instances(place.name)):
            mine = place.share(index)
            for device in mine:
                if device not in devices:
                    about = unknown("device", str(device), map(str, devices), "of this cluster")
                    raise PlanError(f"the place `{place.name}`: {about}")
                # All CPU devices of a machine, simulated ones included, share its memory.
                owner = replace(device, index=0) if device.is_host else device
                each = memory[place.name].peak + memory[place.name].messages
                needed[owner] += each // len(mine)
    for owner, nbytes in needed.items():
        limit = devices[owner].memory if owner in devices else None
        if limit is not None and nbytes > limit:
            name = f"the node `{owner.node}`" if owner.is_host else str(owner)
            raise PlanError(
                f"{name} has {bytes_text(limit)} of memory, and this plan needs at least "
                f"{bytes_text(nbytes)} there. Use fewer environments, a smaller replay or more "
                f"nodes."
            )


def _check_hardware(plan: Plan) -> None:
    """Refuse unknown devices, and places that do not fit into the memory of their devices."""
    memory = footprint(plan)
    needed: dict[Any, int] = defaultdict(int)
    for place in plan.places:
        try:
            for device in place.on:
                read_slice(device)  # raises if the text after the device names no slice
            devices = find_devices(device.whole for device in place.on)
        except ValueError as error:
            raise PlanError(f"the place `{place.name}`: {error}") from error
        each = memory[place.name].peak + memory[place.name].messages
        for device in devices:
            # All CPU devices of a machine, simulated ones included, share its memory.
            owner = HOST if device.platform == HOST else device
            needed[owner] += each * plan.instances(place.name) // len(devices)
    for owner, nbytes in needed.items():
        name, more = ("this machine", "") if owner == HOST else (id_of(owner), ", or more devices")
        limit = host_memory() if owner == HOST else (owner.memory_stats() or {}).get("bytes_limit")
        if limit is not None and nbytes > limit:
            raise PlanError(
                f"{name} has {bytes_text(limit)} of memory, and this plan needs at least "
                f"{bytes_text(nbytes)} there. Use fewer environments or a smaller replay{more}."
            )
