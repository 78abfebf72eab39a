"""Programs of places, followed by hand in a drawn order: they always come to their end."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from hocket import Place, Plan, trace
from hocket.core.projection.instructions import Compute, Instruction, Receive, Repeat, Send
from tests.core.plans import APART, SPLIT
from tests.toys import Toy

GRAPH, ITERATIONS = trace(Toy(), 8), 3
ENV, ACT, LEARN = (Place(role, (role,)) for role in ("env", "act", "learn"))
PLANS = {
    "a loop on one place": (Place("actor", ("env", "act")), LEARN),
    "a loop that crosses": (ENV, Place("center", ("act", "learn"))),
    "each on its own": (ENV, ACT, LEARN),
    "in another order": (LEARN, ACT, ENV),
}


def messages(code: Sequence[Instruction]) -> Iterator[Send | Receive]:
    """Yield the sends and receives of one iteration, in their order."""
    for step in code:
        if isinstance(step, Repeat):
            for _ in range(step.length):
                yield from messages(step.code)
        elif isinstance(step, Send | Receive):
            yield step


def finishes(programs: dict[str, list[Send | Receive]], draw: random.Random) -> bool:
    """Follow the programs with room for one message of each transfer; False in a deadlock."""
    waiting = Counter[int]()
    left = {place: iter(steps) for place, steps in programs.items()}
    upcoming = {place: next(steps, None) for place, steps in left.items()}
    while any(upcoming.values()):
        able = [
            place for place, step in upcoming.items()
            if step and bool(waiting[step.transfer.id]) == isinstance(step, Receive)
        ]  # fmt: skip
        if not able:
            return False
        place = draw.choice(able)
        step = upcoming[place]
        assert step
        waiting[step.transfer.id] += 1 if isinstance(step, Send) else -1
        upcoming[place] = next(left[place], None)
    return not any(waiting.values())


@pytest.mark.parametrize("name", PLANS)
def test_nobody_deadlocks_with_room_for_one_message_of_each_transfer(name: str) -> None:
    code = Plan(GRAPH, PLANS[name]).projection.programs
    programs = {place: [*messages(code[place])] * ITERATIONS for place in code}
    assert sum(map(len, programs.values()))
    for seed in range(20):
        assert finishes(programs, random.Random(seed))


def test_the_test_above_can_fail() -> None:
    code = Plan(GRAPH, PLANS["a loop on one place"]).projection.programs
    programs = {place: [*messages(code[place])] for place in code}
    programs["learn"].reverse()  # it waits for a rollout before it sends the parameters
    assert not finishes(programs, random.Random(0))


@pytest.mark.parametrize("name", PLANS)
def test_every_message_has_one_sender_and_one_receiver(name: str) -> None:
    projection = Plan(GRAPH, PLANS[name]).projection
    sent, received = Counter[int](), Counter[int]()
    for place, code in projection.programs.items():
        for step in messages(code):
            count, end = (sent, "source") if isinstance(step, Send) else (received, "target")
            assert getattr(step.transfer, end) == place
            count[step.transfer.id] += 1
    assert sent == received == Counter({t.id: t.times for t in projection.transfers})


def test_a_loop_on_one_place_is_one_segment() -> None:
    programs = Plan(trace(Toy(), 8), SPLIT).projection.programs
    # The last one makes a metric, which nobody waits for.
    assert [type(x) for x in programs["actor"]] == [Receive, Compute, Send, Compute]
    assert [type(x) for x in programs["learner"]] == [Send, Receive, Compute]


def test_a_loop_that_crosses_is_driven_by_each_place() -> None:
    programs = Plan(trace(Toy(), 8), APART).projection.programs
    (loop,) = [x for x in programs["act"] if isinstance(x, Repeat)]
    assert loop.length == 3
    kinds = [type(x) for x in loop.code]
    assert kinds.count(Receive) == kinds.count(Send) == 1
    assert not [x for x in programs["learner"] if isinstance(x, Repeat)]


def test_what_was_sent_is_never_donated() -> None:
    for places in (SPLIT, APART):
        for code in Plan(trace(Toy(), 8), places).projection.programs.values():
            sent = {v for x in code if isinstance(x, Send) for v in x.transfer.values}
            donated = {v for x in code if isinstance(x, Compute) for v in x.donate}
            assert not sent & donated
