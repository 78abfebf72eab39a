"""The five instructions that a place follows, and the programs of all places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hocket.core.projection.placement import Placement


@dataclass(frozen=True)
class Transfer:
    """Values that cross from one place to another in one message."""

    id: int
    source: str
    target: str
    values: tuple[int, ...]
    times: int
    """How often in an iteration."""
    loops: tuple[int, ...] = ()
    """The loops it is in, by their nodes, from the outside."""


@dataclass(frozen=True)
class Compute:
    """A segment: neighbouring nodes of one place, compiled as one program."""

    nodes: tuple[int, ...]
    ins: tuple[int, ...] = ()
    outs: tuple[int, ...] = ()
    donate: tuple[int, ...] = ()
    """Those of `ins` that nobody needs any more and nobody else has ever seen."""
    dead: tuple[int, ...] = ()
    """Those of `ins` that this place does not need any more."""


@dataclass(frozen=True)
class Host:
    """A call of a host function, in between the compiled segments."""

    node: int
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    dead: tuple[int, ...] = ()
    """Those of `ins` that this place does not need any more."""


@dataclass(frozen=True)
class Send:
    transfer: Transfer


@dataclass(frozen=True)
class Receive:
    transfer: Transfer


@dataclass(frozen=True)
class Repeat:
    """This place's part of a loop that crosses places or calls the host, driven from there.

    One that only calls the host can be a segment after all: see `host_loops`.
    """

    node: int
    length: int
    reverse: bool
    code: tuple[Instruction, ...]
    consts: tuple[tuple[int, int], ...]  # (outside, inside)
    xs: tuple[tuple[int, int], ...]  # (outside, inside)
    carry: tuple[tuple[int, int, int, int], ...]  # (first, inside, next, after the loop)
    ys: tuple[tuple[int, int], ...]  # (inside, after the loop)
    kept: tuple[tuple[int, int], ...]  # (outside, after the loop)

    @property
    def reads(self) -> set[int]:
        return {first for first, *_ in (*self.consts, *self.xs, *self.carry, *self.kept)}

    @property
    def makes(self) -> set[int]:
        return {last for *_, last in (*self.carry, *self.ys, *self.kept)}


Instruction = Compute | Host | Send | Receive | Repeat


@dataclass(frozen=True)
class Projection:
    """The programs of a graph's places, and all that crosses between them."""

    placement: Placement
    programs: Mapping[str, tuple[Instruction, ...]]
    transfers: tuple[Transfer, ...]
