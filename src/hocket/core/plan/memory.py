"""The memory that the places of a plan need, counted from their programs without compiling."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hocket.core.graph.trace import ValueId
from hocket.core.projection.instructions import Compute, Instruction, Repeat, Transfer, walk
from hocket.system.text import bytes_text

if TYPE_CHECKING:
    from hocket.core.plan.data import Plan


@dataclass(frozen=True)
class Memory:
    """The bytes that one instance of a place needs."""

    state: int
    """The bytes of the instance's part of the state. A leaf with an environment axis is shared out
    among the replicas; any other leaf counts in full."""
    peak: int
    """The most bytes in use at once during an iteration, including the state. It is a lower bound:
    what fragments need inside is not counted."""
    messages: int
    """The bytes of the messages to the instance when all channels to it are full."""

    def __str__(self) -> str:
        waiting = f", up to {bytes_text(self.messages)} in messages" if self.messages else ""
        return f"state {bytes_text(self.state)}, at least {bytes_text(self.peak)} at once{waiting}"


def footprint(plan: Plan) -> dict[str, Memory]:
    """Return the memory of one instance of every place.

    `peak` counts the values between segments, each from where it is made or received to its last
    use, and the rows that a loop stacks. It is a lower bound, since only the compiler knows what a
    fragment needs inside, and only the runtime what is copied.

        footprint(plan)["learner"].peak
    """
    return {place.name: _memory(plan, place.name) for place in plan.places}


def _memory(plan: Plan, place: str) -> Memory:
    graph, placement = plan.graph, plan.projection.placement
    code, size = plan.projection.programs[place], _sizes(plan, place)
    held = placement.held(place)
    alive = _Alive(size, dict(_same(code)), frozenset(graph.constants))
    peak, first = alive.code(code, placement.ends(place), set())
    return Memory(
        state=sum(size(v) for v in held),
        peak=max(peak, alive.total({*first, *held})),
        messages=sum(_waiting(plan, t) for t in plan.projection.transfers if t.target == place),
    )


def _sizes(plan: Plan, place: str) -> Callable[[ValueId], int]:
    """Return a function that gives the number of bytes of a value on one instance of `place`."""
    replicas = plan.place(place).replicas
    values = plan.graph.at(plan.envs_of(place) // replicas).values
    if place not in plan.grouped:
        return lambda v: values[v].nbytes
    kinds = plan.kinds[place]  # one program stacks its replicas' values, unless all are equal

    def size(v: ValueId) -> int:
        uniform = v not in kinds or kinds[v].tag == "uniform"
        return values[v].nbytes * (1 if uniform else replicas)

    return size


def _waiting(plan: Plan, transfer: Transfer) -> int:
    """Return how many bytes a transfer's messages to one instance take if the channel is full."""
    total = 0
    for v in transfer.values:
        room = plan.slots(transfer) * plan.graph.values[v].nbytes
        # A value is split among instances and parts if it is per-environment, else sent whole.
        by_env = plan.axes.axis(v) is not None
        total += room // plan.instances(transfer.target) if by_env else room * plan.cuts(transfer)
    return total


@dataclass(frozen=True)
class _Alive:
    """Adds up the bytes of values that are alive, going from a program's end to its beginning."""

    size: Callable[[ValueId], int]
    same: dict[ValueId, ValueId]
    """For values that loops pass on unchanged: the id in or after a loop -> the id before it."""
    nothing: frozenset[ValueId]
    """The constants. They count as no bytes, because they are part of the compiled programs."""

    def total(self, values: Iterable[ValueId]) -> int:
        return sum(self.size(v) for v in {self._root(v) for v in values} - self.nothing)

    def code(
        self, code: Sequence[Instruction], live: set[ValueId], around: set[ValueId]
    ) -> tuple[int, set[ValueId]]:
        """Return the peak bytes of a program, and the values that are alive at its beginning.

        `live` are the values alive at its end, and `around` those alive throughout.
        """
        peak, live = self.total(live | around), set(live)
        for step in reversed(code):
            if isinstance(step, Repeat):
                now = self._loop(step, around | (live - step.makes))
            else:
                # An output takes the memory of each donated input, so count only one of the two.
                reused = step.donate if isinstance(step, Compute) else ()
                now = self.total(live | step.reads | step.makes | around) - self.total(reused)
            live = (live - step.makes) | step.reads
            peak = max(peak, now, self.total(live | around))
        return peak, live

    def _loop(self, loop: Repeat, around: set[ValueId]) -> int:
        """Return the peak bytes in the last pass of a loop, when the rows of all passes exist."""
        kept = {x.outside for x in (*loop.consts, *loop.xs, *loop.kept)}
        arrays = {y.after for y in loop.ys}
        ends = {*(c.next for c in loop.carry), *(y.row for y in loop.ys)}
        return self.code(loop.code, ends, around | kept | arrays)[0]

    def _root(self, value: ValueId) -> ValueId:
        while value in self.same:
            value = self.same[value]
        return value


def _same(code: Sequence[Instruction]) -> Iterable[tuple[ValueId, ValueId]]:
    """For values that loops pass on unchanged, yield two ids: in or after a loop, and before it."""
    for step in walk(code):
        if isinstance(step, Repeat):
            yield from ((x.inside, x.outside) for x in step.consts)
            yield from ((x.after, x.outside) for x in step.kept)
