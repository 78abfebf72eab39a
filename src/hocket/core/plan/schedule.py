"""Schedules, which say where places wait for each other's values.

In `Lockstep`, every place waits. In `Free`, a learner and the makers of its samples do not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from hocket.core.projection.instructions import Transfer


@dataclass(frozen=True)
class Lockstep:
    """Every place waits for the values that its program needs. Channels may have a `lag`."""


@dataclass(frozen=True)
class Pair:
    """Two places that do not wait for each other: a learner, and the makers of its samples.

    What the learner sends is a *version*, and makers use the newest one. Each iteration of the
    learner takes `batch` samples, from any replicas of the makers.
    """

    learner: str
    makers: str
    """The place whose replicas make samples."""
    max_age: int
    """The greatest age of a sample when it is learned from, in iterations since the learner sent
    the version that made it. Makers wait before a sample could get older."""
    batch: int = 1
    """How many samples an iteration of the learner takes. It takes the oldest first. This number
    must divide the number of makers."""

    def __str__(self) -> str:
        return f"{self.learner} -> {self.makers}"


@dataclass(frozen=True)
class Free:
    """The schedule in which a learner and the makers of its samples do not wait for each other.

    So numbers are not repeatable, but the age of samples is bounded.
    """

    pairs: tuple[Pair, ...]

    def __init__(self, pairs: Pair | Iterable[Pair]) -> None:
        object.__setattr__(self, "pairs", (pairs,) if isinstance(pairs, Pair) else tuple(pairs))


Schedule = Lockstep | Free
LOCKSTEP = Lockstep()


class Sampling(NamedTuple):
    """The `Pair` of a free plan, with the number of makers.

    `maker` is the name of the place that makes samples, and `makers` its number of replicas.
    """

    learner: str
    maker: str
    makers: int
    max_age: int
    batch: int

    @property
    def shares(self) -> int:
        """The number of equal shares of the environments. An iteration of the learner uses one."""
        return self.makers // self.batch

    @property
    def window(self) -> int:
        """How far a maker may be ahead: the samples begun, but not yet taken by the learner."""
        return self.max_age * self.batch // self.makers

    def is_version(self, transfer: Transfer) -> bool:
        """Return True if a transfer carries versions: it goes from the learner to the makers."""
        return (transfer.source, transfer.target) == (self.learner, self.maker)

    def is_any(self, transfer: Transfer) -> bool:
        """Return True if a transfer goes from the makers to the learner.

        Each message comes complete from one maker, and the learner can take it from any of them.
        """
        return (transfer.source, transfer.target) == (self.maker, self.learner)

    def is_sample(self, transfer: Transfer) -> bool:
        """Return True if a transfer carries a part of a sample to the learner."""
        return transfer.target == self.learner
