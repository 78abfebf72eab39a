"""How much memory the places of a plan need: counted from their programs, nothing compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hocket.core.graph.trace import ValueId
from hocket.core.projection.instructions import Compute, Instruction, Repeat, walk
from hocket.system.text import bytes_text

if TYPE_CHECKING:
    from hocket.core.plan.data import Plan


@dataclass(frozen=True)
class Memory:
    """Bytes of one instance of a place."""

    state: int
    """The leaves of the state that it holds: its share of what is per environment."""
    peak: int
    """The most that is alive at once in an iteration, the state included. A lower bound."""
    messages: int
    """What may wait for it in its incoming channels, when they are full."""

    def __str__(self) -> str:
        waiting = f", up to {bytes_text(self.messages)} in messages" if self.messages else ""
        return f"state {bytes_text(self.state)}, at least {bytes_text(self.peak)} at once{waiting}"


def footprint(plan: Plan) -> dict[str, Memory]:
    """The memory of one instance of every place.

    `peak` counts the values between segments, each from where it is made or received to its last
    use, and the rows that a loop stacks. It is a lower bound: what a fragment needs inside, and
    copies on the way, are known only to the compiler and the runtime.

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
        messages=_waiting(plan, place),
    )


def _sizes(plan: Plan, place: str) -> Callable[[ValueId], int]:
    """The bytes of a value as one instance of `place` has it."""
    replicas = plan.place(place).replicas
    values = plan.graph.at(plan.envs_of(place) // replicas).values
    if place not in plan.grouped:
        return lambda v: values[v].nbytes
    kinds = plan.kinds[place]  # replicas that are one program hold whatever differs side by side

    def size(v: ValueId) -> int:
        uniform = v not in kinds or kinds[v].tag == "uniform"
        return values[v].nbytes * (1 if uniform else replicas)

    return size


def _waiting(plan: Plan, place: str) -> int:
    """The bytes of all the messages that fit into the channels to one instance."""
    total = 0
    for t in plan.projection.transfers:
        if t.target != place:
            continue
        room = plan.slots(t)
        for v in t.values:
            by_env = plan.axes.axis(v) is not None
            share = plan.instances(place) if by_env else 1
            total += room * plan.graph.values[v].nbytes // share * (1 if by_env else plan.cuts(t))
    return total


@dataclass(frozen=True)
class _Alive:
    """The values that are alive in a program, followed from its end to its beginning."""

    size: Callable[[ValueId], int]
    same: dict[ValueId, ValueId]
    """Values that are others under a second name: inside a loop, or after it."""
    nothing: frozenset[ValueId]
    """The constants: part of the compiled programs."""

    def total(self, values: Iterable[ValueId]) -> int:
        return sum(self.size(v) for v in {self._root(v) for v in values} - self.nothing)

    def code(
        self, code: Sequence[Instruction], live: set[ValueId], around: set[ValueId]
    ) -> tuple[int, set[ValueId]]:
        """The peak, and what is alive at the beginning; `around` is held all the time."""
        peak, live = self.total(live | around), set(live)
        for step in reversed(code):
            if isinstance(step, Repeat):
                now = self._loop(step, around | (live - step.makes))
            else:
                # What is donated becomes an output in place.
                reused = step.donate if isinstance(step, Compute) else ()
                now = self.total(live | step.reads | step.makes | around)
                now -= self.total(reused)
            live = (live - step.makes) | step.reads
            peak = max(peak, now, self.total(live | around))
        return peak, live

    def _loop(self, loop: Repeat, around: set[ValueId]) -> int:
        """The peak inside a loop, all of its rows stacked."""
        kept = {x.outside for x in (*loop.consts, *loop.xs, *loop.kept)}
        arrays = {y.after for y in loop.ys}
        ends = {*(c.next for c in loop.carry), *(y.row for y in loop.ys)}
        return self.code(loop.code, ends, around | kept | arrays)[0]

    def _root(self, value: ValueId) -> ValueId:
        while value in self.same:
            value = self.same[value]
        return value


def _same(code: Sequence[Instruction]) -> Iterable[tuple[ValueId, ValueId]]:
    """(a value, the one that it is) for what loops only pass on."""
    for step in walk(code):
        if isinstance(step, Repeat):
            yield from ((x.inside, x.outside) for x in step.consts)
            yield from ((x.after, x.outside) for x in step.kept)
