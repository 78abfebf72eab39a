"""The five instructions of a place's program, and the programs of all places.

Each instruction says which values it `reads` and `makes` on its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, NewType

from hocket.core.graph.trace import Carried, Given, NodeId, Stacked, ValueId
from hocket.core.projection.placement import Placement

TransferId = NewType("TransferId", int)
"""The number of a transfer: its index in `Projection.transfers`."""


@dataclass(frozen=True)
class Transfer:
    """Values that cross from one place to another in one message."""

    id: TransferId
    source: str
    target: str
    values: tuple[ValueId, ...]
    times: int
    """How many times the values cross in one iteration."""
    loops: tuple[NodeId, ...] = ()
    """The nodes of the loops in which the values cross, outermost first."""


@dataclass(frozen=True)
class Compute:
    """A segment: neighbouring nodes of one place, compiled as one program."""

    nodes: tuple[NodeId, ...]
    ins: tuple[ValueId, ...] = ()
    outs: tuple[ValueId, ...] = ()
    donate: tuple[ValueId, ...] = ()
    """Inputs whose memory the outputs may take, because nothing else needs or holds the inputs."""
    dead: tuple[ValueId, ...] = ()
    """The inputs that this place does not need after the segment."""

    @property
    def reads(self) -> set[ValueId]:
        return set(self.ins)

    @property
    def makes(self) -> set[ValueId]:
        return set(self.outs)


@dataclass(frozen=True)
class Host:
    """A call of a host function, between compiled segments."""

    node: NodeId
    ins: tuple[ValueId, ...]
    outs: tuple[ValueId, ...]
    dead: tuple[ValueId, ...] = ()
    """The inputs that this place does not need after the call."""

    @property
    def reads(self) -> set[ValueId]:
        return set(self.ins)

    @property
    def makes(self) -> set[ValueId]:
        return set(self.outs)


@dataclass(frozen=True)
class Send:
    """Send the values of a transfer; wait only while its channel is full."""

    transfer: Transfer

    @property
    def reads(self) -> set[ValueId]:
        return set(self.transfer.values)

    @property
    def makes(self) -> set[ValueId]:
        return set()


@dataclass(frozen=True)
class Receive:
    """Wait for the next message of a transfer."""

    transfer: Transfer

    @property
    def reads(self) -> set[ValueId]:
        return set()

    @property
    def makes(self) -> set[ValueId]:
        return set(self.transfer.values)


class PassedOn(NamedTuple):
    """A value that a loop hands on unchanged."""

    outside: ValueId
    after: ValueId


@dataclass(frozen=True)
class Repeat:
    """This place's part of a loop that crosses places or calls the host.

    The place runs `code` in each of `length` passes. A loop that calls the host but crosses no
    places can also run as one segment: see `host_loops`.
    """

    node: NodeId
    length: int
    reverse: bool
    code: tuple[Instruction, ...]
    consts: tuple[Given, ...]
    xs: tuple[Given, ...]
    carry: tuple[Carried, ...]
    ys: tuple[Stacked, ...]
    kept: tuple[PassedOn, ...]

    @property
    def reads(self) -> set[ValueId]:
        read = {x.outside for x in (*self.consts, *self.xs, *self.kept)}
        return read | {c.first for c in self.carry}

    @property
    def makes(self) -> set[ValueId]:
        return {x.after for x in (*self.carry, *self.ys, *self.kept)}


Instruction = Compute | Host | Send | Receive | Repeat


def walk(code: Sequence[Instruction]) -> Iterator[Instruction]:
    """Yield every instruction of a program at any depth, a loop before its body."""
    for step in code:
        yield step
        if isinstance(step, Repeat):
            yield from walk(step.code)


@dataclass(frozen=True)
class Projection:
    """The programs of all places of a graph, and the transfers between them."""

    placement: Placement
    programs: Mapping[str, tuple[Instruction, ...]]
    transfers: tuple[Transfer, ...]
