"""Who waits for whom: everybody in lockstep, or nobody between a learner and its makers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from hocket.core.projection.instructions import Transfer


@dataclass(frozen=True)
class Lockstep:
    """Everybody waits for what the program needs next; the `lag` of a channel counts."""


@dataclass(frozen=True)
class Pair:
    """Two places that do not wait for each other: one learns from samples that the other makes.

    The newest that the learner sends reaches the makers as its latest *version*. An iteration of
    the learner takes `batch` samples, each from any one replica of the makers.
    """

    learner: str
    makers: str
    """The place whose replicas make samples."""
    max_age: int
    """How many iterations after the version that it was made with a sample may still be learned
    from. Makers wait before a sample could get older."""
    batch: int = 1
    """Samples in an iteration, the oldest that are ready. It divides the number of makers."""

    def __str__(self) -> str:
        return f"{self.learner} -> {self.makers}"


@dataclass(frozen=True)
class Free:
    """Nobody waits within a pair. No number is repeatable, and the age of samples is bounded."""

    pairs: tuple[Pair, ...]

    def __init__(self, pairs: Pair | Iterable[Pair]) -> None:
        given = (pairs,) if isinstance(pairs, Pair) else tuple(pairs)
        object.__setattr__(self, "pairs", given)


Schedule = Lockstep | Free
LOCKSTEP = Lockstep()


class Sampling(NamedTuple):
    """The pair of a free plan, with the number of replicas that make its samples."""

    learner: str
    maker: str
    makers: int
    max_age: int
    batch: int

    @property
    def shares(self) -> int:
        """How many iterations it takes to learn from every environment once."""
        return self.makers // self.batch

    @property
    def window(self) -> int:
        """How many samples of one maker may be waiting or under way."""
        return self.max_age * self.batch // self.makers

    def is_version(self, transfer: Transfer) -> bool:
        """Whether this carries the newest values to all makers."""
        return (transfer.source, transfer.target) == (self.learner, self.maker)

    def is_any(self, transfer: Transfer) -> bool:
        """Whether what one maker sends is whole without that of the others."""
        return (transfer.source, transfer.target) == (self.maker, self.learner)

    def is_sample(self, transfer: Transfer) -> bool:
        """Whether this carries a part of a sample to the learner."""
        return transfer.target == self.learner
