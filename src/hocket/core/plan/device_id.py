"""`DeviceId`: the name of a device in a plan, which can be written as text and read back."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from hocket.errors import PlanError
from hocket.system.platforms import HOST

_TEXT = re.compile(r"(?:([^/:\s]+)/)?([^/:\s]+):(\d+)(?:/(\S+))?")


@dataclass(frozen=True)
class DeviceId:
    """One device, or a slice of one. Its text is complete: `DeviceId.read(str(x)) == x`.

    Core only compares, prints and reads it. `hocket.cluster` alone knows what kinds and slices are.
    """

    kind: str
    """The kind of device, as JAX names it: `cpu`, `gpu`."""
    index: int
    """The device's number among the devices of the same kind."""
    node: str = ""
    """The host name of the device's machine; "" for this machine."""
    slice: str = ""
    """The slice of the device, in the notation of the method that cuts it; "" for all of it."""

    @staticmethod
    def read(text: str) -> DeviceId:
        """Return the device that a text names, such as `cpu:0`, `n1/gpu:1` or `gpu:0/mps:1of4@50%`.

        A node's name has no colon, so the `gpu:0` before a slice is never taken for a node.
        """
        match = _TEXT.fullmatch(text)
        if match is None:
            raise PlanError(
                f"`{text}` is no device: write KIND:NUMBER, as `hocket devices` lists them. Put "
                f"NODE/ before it for a device of another machine, and /SLICE after it for a part."
            )
        node, kind, index, part = match.groups("")
        return DeviceId(kind, int(index), node, part)

    def __str__(self) -> str:
        return "/".join(filter(None, (self.node, f"{self.kind}:{self.index}", self.slice)))

    @property
    def is_host(self) -> bool:
        """True if the device is the processor of its host, with the host's memory."""
        return self.kind == HOST

    @property
    def whole(self) -> DeviceId:
        """The device that this is a slice of, or this device itself."""
        return replace(self, slice="")


def device_ids(devices: Iterable[object]) -> tuple[DeviceId, ...]:
    """Return the ids of devices, which may be given as devices of a cluster, as ids or as text."""
    return tuple(DeviceId.read(str(device)) for device in devices)
