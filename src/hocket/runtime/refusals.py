"""Refuse a plan that cannot run here. Every way to run a plan begins with `refuse`."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

from hocket.cluster.devices import Cluster, find_devices, host_memory, id_of
from hocket.cluster.slices import read_slice
from hocket.core.plan.data import Plan
from hocket.core.plan.device_id import DeviceId
from hocket.core.plan.memory import footprint
from hocket.errors import PlanError
from hocket.runtime.averaging.known import check_averages
from hocket.runtime.channels.choice import check_transports
from hocket.runtime.launch import launcher_of
from hocket.system.platforms import HOST
from hocket.system.text import bytes_text, names_text


def refuse(plan: Plan, cluster: Cluster | None = None) -> None:
    """Refuse a plan if its launcher, devices, memory, links or averages are not available here."""
    only_looked_at = cluster is not None and cluster.nodes and cluster.launch is None
    if not only_looked_at:
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
    # A node with accelerators has a host, too. All CPU devices of a node share its memory.
    limits = {DeviceId(HOST, 0, node.name): node.memory for node in cluster.nodes}
    limits |= {device.id: device.memory for device in cluster.devices}
    memory, needed = footprint(plan), defaultdict[DeviceId, Counter[str]](Counter)
    for place in plan.places:
        each = memory[place.name].peak + memory[place.name].messages
        for index in range(plan.instances(place.name)):
            mine = place.share(index)
            for device in mine:
                if device not in limits:
                    raise PlanError(_not_there(place.name, device, cluster))
                owner = replace(device, index=0) if device.is_host else device
                needed[owner][place.name] += each // len(mine)
    for owner, by_place in needed.items():
        limit, nbytes = limits[owner], by_place.total()
        if limit is not None and nbytes > limit:
            name = f"the node `{owner.node}`" if owner.is_host else str(owner)
            most = ", ".join(f"`{place}` {bytes_text(n)}" for place, n in by_place.most_common())
            raise PlanError(
                f"{name} has {bytes_text(limit)} of memory, and this plan needs at least "
                f"{bytes_text(nbytes)} there ({most}). Use fewer environments, a smaller replay or "
                f"more nodes."
            )


def _not_there(place: str, device: DeviceId, cluster: Cluster) -> str:
    """Return the error for a device that a place has and a cluster has not."""
    nodes = {node.name for node in cluster.nodes}
    if device.node not in nodes:
        known = names_text(node.name for node in cluster.nodes)
        return f"the place `{place}`: {device} is on no node of this cluster, which has {known}."
    mine = names_text(str(x) for x in cluster.devices if x.id.node == device.node)
    return f"the place `{place}`: there is no {device}. The node `{device.node}` has {mine}."


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
