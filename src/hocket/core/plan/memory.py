"""How much memory the places of a plan need: counted from their programs, nothing compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hocket.core.projection.instructions import Compute, Host, Instruction, Receive, Repeat, Send
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
    graph, home = plan.graph, plan.projection.placement.home
    code, block = plan.projection.programs[place], plan.graph.block
    size = _sizes(plan, place)
    state = list(zip(block.inputs, block.outputs, strict=False))
    held = [v for v, _ in state if home[v] == place]
    live = {out for v, out in state if home[v] == place}
    live |= {v for v, at in plan.projection.placement.reports.items() if at == place}
    walk = _Walk(size, dict(_same(code)), frozenset(graph.constants))
    peak, first = walk.code(code, live, set())
    return Memory(
        state=sum(size(v) for v in held),
        peak=max(peak, walk.total({*first, *held})),
        messages=_waiting(plan, place),
    )


def _sizes(plan: Plan, place: str) -> Callable[[int], int]:
    """The bytes of a value as one instance of `place` has it."""
    replicas = plan.place(place).replicas
    values = plan.graph.at(plan.envs_of(place) // replicas).values
    if place not in plan.grouped:
        return lambda v: values[v].nbytes
    kinds = plan.kinds[place]  # replicas that are one program hold whatever differs side by side

    def size(v: int) -> int:
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
class _Walk:
    """Follows what is alive through a program, from its end to its beginning."""

    size: Callable[[int], int]
    same: dict[int, int]
    """Values that are others under a second name: inside a loop, or after it."""
    nothing: frozenset[int]
    """The constants: part of the compiled programs."""

    def total(self, values: Iterable[int]) -> int:
        return sum(self.size(v) for v in {self._root(v) for v in values} - self.nothing)

    def code(
        self, code: Sequence[Instruction], live: set[int], around: set[int]
    ) -> tuple[int, set[int]]:
        """The peak, and what is alive at the beginning; `around` is held all the time."""
        peak, live = self.total(live | around), set(live)
        for step in reversed(code):
            reads, makes = _reads(step), _makes(step)
            if isinstance(step, Repeat):
                now = self._loop(step, around | (live - makes))
            else:
                # What is donated becomes an output in place.
                reused = step.donate if isinstance(step, Compute) else ()
                now = self.total(live | reads | makes | around) - self.total(reused)
            live = (live - makes) | reads
            peak = max(peak, now, self.total(live | around))
        return peak, live

    def _loop(self, loop: Repeat, around: set[int]) -> int:
        """The peak inside a loop, all of its rows stacked."""
        kept = {first for first, *_ in (*loop.consts, *loop.xs, *loop.kept)}
        rows = {after for _, after in loop.ys}
        ends = {last for _, _, last, _ in loop.carry} | {inside for inside, _ in loop.ys}
        return self.code(loop.code, ends, around | kept | rows)[0]

    def _root(self, value: int) -> int:
        while value in self.same:
            value = self.same[value]
        return value


def _reads(step: Instruction) -> set[int]:
    match step:
        case Compute(_, ins) | Host(_, ins):
            return set(ins)
        case Send(transfer):
            return set(transfer.values)
        case Receive():
            return set()
        case Repeat():
            return step.reads


def _makes(step: Instruction) -> set[int]:
    match step:
        case Compute(_, _, outs) | Host(_, _, outs):
            return set(outs)
        case Receive(transfer):
            return set(transfer.values)
        case Send():
            return set()
        case Repeat():
            return step.makes


def _same(code: Sequence[Instruction]) -> Iterable[tuple[int, int]]:
    """(a value, the one that it is) for what loops only pass on."""
    for step in code:
        if isinstance(step, Repeat):
            yield from ((inside, outside) for outside, inside in step.consts)
            yield from ((after, outside) for outside, after in step.kept)
            yield from _same(step.code)
