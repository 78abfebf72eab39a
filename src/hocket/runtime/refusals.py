"""What cannot run here, by name and before anything starts: every way to run a plan asks this."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from hocket.cluster.devices import find_devices, host_memory
from hocket.cluster.slices import device_of
from hocket.core.plan.data import Plan
from hocket.core.plan.memory import footprint
from hocket.errors import PlanError
from hocket.runtime.averaging.known import check_averages
from hocket.runtime.channels.choice import check_transports
from hocket.runtime.launch import launcher_of
from hocket.system.text import bytes_text


def refuse(plan: Plan) -> None:
    """Refuse a plan whose launcher, devices, memory, links or averages are not to be had here."""
    launcher_of(plan)
    _check_hardware(plan)
    check_transports(plan)
    check_averages(plan)


def _check_hardware(plan: Plan) -> None:
    """Refuse devices that are not there, and places that cannot fit into theirs."""
    memory = footprint(plan)
    needed: dict[Any, int] = defaultdict(int)
    for place in plan.places:
        try:
            devices = find_devices(map(device_of, place.on))
        except ValueError as error:
            raise PlanError(f"the place `{place.name}`: {error}") from error
        each = memory[place.name].peak + memory[place.name].messages
        for device in devices:
            # The CPU devices of a machine, simulated ones too, share its memory.
            whose = "cpu" if device.platform == "cpu" else device
            needed[whose] += each * plan.instances(place.name) // len(devices)
    for whose, nbytes in needed.items():
        name = "this machine" if whose == "cpu" else f"{whose.platform}:{whose.id}"
        limit = host_memory() if whose == "cpu" else _memory_of(whose)
        if limit is not None and nbytes > limit:
            raise PlanError(
                f"{name} has {bytes_text(limit)} of memory, and this plan needs at least "
                f"{bytes_text(nbytes)} there. Use fewer environments, a smaller replay, or more "
                f"devices."
            )


def _memory_of(device: Any) -> int | None:
    """What a device has in all, where that can be known."""
    return (device.memory_stats() or {}).get("bytes_limit")
