"""The five instructions: what each reads and makes on its place, and the walk over them."""

from __future__ import annotations

import pytest

from hocket import Plan, trace
from hocket.core.graph.trace import Carried, Given, NodeId, Stacked, ValueId
from hocket.core.projection.instructions import (
    Compute,
    Host,
    Instruction,
    PassedOn,
    Receive,
    Repeat,
    Send,
    Transfer,
    TransferId,
    walk,
)
from tests.core.plans import APART
from tests.toys import Toy


def ids(*numbers: int) -> tuple[ValueId, ...]:
    return tuple(map(ValueId, numbers))


TRANSFER = Transfer(TransferId(0), "actor", "learner", ids(5, 6), times=1)
LOOP = Repeat(
    NodeId(9), 3, False, (Receive(TRANSFER),),
    consts=(Given(*ids(1, 11)),),
    xs=(Given(*ids(2, 12)),),
    carry=(Carried(*ids(3, 13, 14, 15)),),
    ys=(Stacked(*ids(16, 17)),),
    kept=(PassedOn(*ids(4, 18)),),
)  # fmt: skip


@pytest.mark.parametrize(
    ("step", "reads", "makes"),
    [
        (Compute((NodeId(0),), ids(1, 2), ids(3), donate=ids(1), dead=ids(1)), {1, 2}, {3}),
        (Host(NodeId(0), ids(1), ids(2), dead=ids(1)), {1}, {2}),
        (Send(TRANSFER), {5, 6}, set()),
        (Receive(TRANSFER), set(), {5, 6}),
        # What its body makes is inside; a place sees only what the loop leaves.
        (LOOP, {1, 2, 3, 4}, {15, 17, 18}),
    ],
)
def test_an_instruction_reads_and_makes_values_of_its_place(
    step: Instruction, reads: set[int], makes: set[int]
) -> None:
    assert (step.reads, step.makes) == (reads, makes)


def test_a_walk_goes_into_loops() -> None:
    assert list(walk([Send(TRANSFER), LOOP])) == [Send(TRANSFER), LOOP, Receive(TRANSFER)]


def test_a_walk_finds_what_each_instruction_reads_and_makes() -> None:
    code = Plan(trace(Toy(), 8), APART).projection.programs["act"]
    (loop,) = [x for x in code if isinstance(x, Repeat)]
    steps = list(walk(code))
    assert steps[steps.index(loop) + 1 :][: len(loop.code)] == list(loop.code)
    given = {*trace(Toy(), 8).block.inputs}
    for step in code:
        assert step.reads <= given
        given |= step.makes
    inside = {x.inside for x in (*loop.consts, *loop.xs, *loop.carry)}
    for step in loop.code:
        assert step.reads <= inside
        inside |= step.makes
    assert {c.next for c in loop.carry} | {y.row for y in loop.ys} <= inside
