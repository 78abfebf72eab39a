"""Ways to average that break the contract, for the kit to find (`test_conformance`)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from examples.own_average import Fifo, Listening, Mean

from hocket.runtime.averaging import Address, Epoch, Members, Sites, Space


class OwnNumbers(Mean):
    """Every replica keeps its own numbers."""

    def _mean(self, site: int, *arrays: Any) -> list[np.ndarray]:
        super()._mean(site, *arrays)
        return [np.asarray(x) for x in arrays]


class Sum(Mean):
    """Two replicas get their sum instead of the mean."""

    def _mean(self, site: int, *arrays: Any) -> list[np.ndarray]:
        return [(x * 2).astype(x.dtype) for x in super()._mean(site, *arrays)]


class Patient(Mean):
    """A replica that waits for one that has ended goes on waiting."""

    def _hear(self, other: int, site: int, call: int) -> bytes:
        try:
            return super()._hear(other, site, call)
        except RuntimeError:
            time.sleep(1000)
            raise


class Content(Mean):
    """A replica whose peers are gone takes its own numbers for the mean."""

    def _hear(self, other: int, site: int, call: int) -> bytes:
        try:
            return super()._hear(other, site, call)
        except RuntimeError:
            return b""

    def _mean(self, site: int, *arrays: Any) -> list[np.ndarray]:
        try:
            return super()._mean(site, *arrays)
        except RuntimeError:
            return [np.asarray(x) for x in arrays]


class Spoiling(Listening):
    """A replica that listens as the FIFO does, and joins as another class."""

    def __init__(self, replicas: int, index: int, spoiled: type[Mean]) -> None:
        super().__init__(replicas, index)
        self.spoiled = spoiled

    def join(self, addresses: Sequence[Address], epoch: Epoch) -> Mean:
        mean = super().join(addresses, epoch)
        mean.__class__ = self.spoiled
        return mean


@dataclass(frozen=True)
class Spoiled(Fifo):
    spoiled: type[Mean]

    def listen(
        self, members: Members, index: int, sites: Sites, space: Space | None
    ) -> Spoiling:  # fmt: skip
        return Spoiling(len(members), index, self.spoiled)


OWN_NUMBERS, SUMS = Spoiled(OwnNumbers), Spoiled(Sum)
PATIENT, CONTENT = Spoiled(Patient), Spoiled(Content)


class Greedy(Fifo):
    """A way that takes memory, and does not say so if there is none."""

    def room(self, members: Members, sites: Sites) -> int:
        return 4096


class Vague(Fifo):
    preference = "first"  # type: ignore[assignment]


class Half:
    """An object that is no way to average."""

    name = "half"

    def room(self, members: Members, sites: Sites) -> int:
        return 0
