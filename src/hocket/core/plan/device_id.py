"""The device that a plan names: which it is, as data and as text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from hocket.errors import PlanError
from hocket.system.platforms import HOST

_TEXT = re.compile(r"(?:([^/:\s]+)/)?([^/:\s]+):(\d+)(?:/(\S+))?")


@dataclass(frozen=True)
class DeviceId:
    """One device, or a slice of one. The text has all of it: `DeviceId.read(str(x)) == x`.

    Here it is compared, printed and read. What a kind can do, and what a slice is, is known to
    `hocket.cluster` alone.
    """

    kind: str
    """As JAX has it: `cpu`, `gpu`."""
    index: int
    """Its number among the devices of that kind."""
    node: str = ""
    """The host name of the machine that it is part of; "": the machine that asks."""
    slice: str = ""
    """The part of the device, in the words of whoever cuts it; "": all of it."""

    @staticmethod
    def read(text: str) -> DeviceId:
        """The device of a text: `cpu:0`, `n1/gpu:1`, `gpu:0/mps:1of4@50%`.

        A node has no colon in its name, so it is never taken for a device with a slice.
        """
        found = _TEXT.fullmatch(text)
        if found is None:
            raise PlanError(
                f"`{text}` is no device: write KIND:NUMBER, as `hocket devices` lists them; with "
                f"NODE/ before it for one of another machine, and /SLICE after it for a part."
            )
        node, kind, index, part = found.groups("")
        return DeviceId(kind, int(index), node, part)

    def __str__(self) -> str:
        return "/".join(filter(None, (self.node, f"{self.kind}:{self.index}", self.slice)))

    @property
    def is_host(self) -> bool:
        """Whether it computes on the processor of its host, with the host's memory.

        It follows from the kind, so a text need not say it.
        """
        return self.kind == HOST

    @property
    def whole(self) -> DeviceId:
        """The device that this is a slice of, or itself."""
        return replace(self, slice="")


def device_ids(devices: Iterable[object]) -> tuple[DeviceId, ...]:
    """The devices of a cluster, ids or texts, as ids."""
    return tuple(DeviceId.read(str(device)) for device in devices)
