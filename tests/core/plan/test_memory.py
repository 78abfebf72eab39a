"""The memory of plans, counted by hand for 8 environments and 3 steps.

Bytes in the state: x 128, keys 64, w 16, key 8. A rollout has 3 x 128, and an action 32. The metric
`x` has 32, and the loss 4.
"""

from __future__ import annotations

from hocket import Channel, Place, Plan, trace
from hocket.core.plan.memory import Memory, footprint
from tests.toys import Toy

GRAPH = trace(Toy(), 8)
ACTOR, LEARNER = Place("actor", run=("env", "act")), Place("learner", run=("learn",))


def test_one_program() -> None:
    (memory,) = footprint(Plan(GRAPH, (Place("all", run=("env", "act", "learn")),))).values()
    # Everything is made in the memory of the state, except the two metrics.
    assert memory == Memory(state=216, peak=216 + 32 + 4, messages=0)


def test_actor_and_learner() -> None:
    memory = footprint(Plan(GRAPH, (ACTOR, LEARNER)))
    # x and keys are made in place; w has been received, and the rollout is new.
    assert memory["actor"] == Memory(state=128 + 64, peak=128 + 64 + 16 + 384, messages=16)
    # w was sent, so the new one is made beside it; the key is made in place.
    assert memory["learner"] == Memory(
        state=16 + 8, peak=16 + 8 + 384 + (16 + 4), messages=3 * 128
    )  # fmt: skip


def test_replicas_hold_their_share() -> None:
    actors = Place("actor", run=("env", "act"), replicas=2)
    alone, shared = (
        footprint(Plan(GRAPH, (ACTOR, LEARNER))),
        footprint(Plan(GRAPH, (actors, LEARNER))),
    )
    assert shared["actor"] == Memory(state=(128 + 64) // 2, peak=(592 - 16) // 2 + 16, messages=16)
    assert shared["learner"] == alone["learner"]


def test_replicas_that_are_one_program_hold_the_whole() -> None:
    one, two = (
        footprint(Plan(GRAPH, (Place("all", run=("env", "act", "learn"), replicas=n),)))["all"]
        for n in (1, 2)
    )
    assert two == one


def test_a_loop_that_crosses_stacks_its_rows() -> None:
    places = (Place("env", run=("env",)), Place("act", run=("act",)), LEARNER)
    memory = footprint(Plan(GRAPH, places))
    assert memory["learner"] == footprint(Plan(GRAPH, (ACTOR, LEARNER)))["learner"]
    # In a step: x, the split keys (2 x 64), the action, the noise's keys, and the new x; the new
    # keys are made where the noise's were.
    assert memory["env"] == Memory(state=192, peak=384 + 128 + 128 + 32 + 64 + 128, messages=32)
    # x and w to one action; w is the same array in every step.
    assert memory["act"] == Memory(state=0, peak=128 + 16 + 32, messages=128 + 16)


def test_channels_hold_messages() -> None:
    channels = {"actor -> learner": Channel(capacity=2, lag=1)}
    memory = footprint(Plan(GRAPH, (ACTOR, LEARNER), channels))
    assert memory["learner"].messages == 3 * 384
