"""Whether the hardware that a plan names is there, and has the memory: before anything runs."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from hocket.cluster.devices import find_devices, host_memory
from hocket.cluster.slices import device_of
from hocket.core.plan.data import Plan
from hocket.core.plan.memory import footprint
from hocket.errors import PlanError
from hocket.runtime.channels.choice import check_transports
from hocket.system.text import bytes_text


def check_hardware(plan: Plan) -> None:
    """Refuse devices that are not there, too little memory, and links that nothing can carry."""
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
    check_transports(plan)


def _memory_of(device: Any) -> int | None:
    """What a device has in all, where that can be known."""
    return (device.memory_stats() or {}).get("bytes_limit")
