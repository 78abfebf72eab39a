"""The whole device as its only slice: for one instance, and where nothing else can be had."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hocket.cluster.devices import Device
from hocket.cluster.slices import Slice, named


class Whole:
    """One process, with nothing set for it."""

    name = "whole"

    def probe(self, device: Device) -> str:
        del device
        return ""

    def layout(self, device: Device, count: int, share: int | None) -> tuple[Slice, ...]:
        del count, share
        return (named(device, self.name, 0, 1, 100),)

    def open(self, slices: Sequence[Slice]) -> Whole:
        del slices
        return self

    def env(self, part: Slice) -> Mapping[str, str | None]:
        del part
        return {}

    def verify(self, part: Slice, seen: Mapping[str, Any]) -> str:
        kind = part.of.partition(":")[0]
        found = seen["device"].partition(":")[0]
        return "" if found == kind else f"its process computes on {seen['device']}"

    def close(self) -> None:
        pass


BACKEND = Whole()
