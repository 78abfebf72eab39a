"""The text of printed plans. A change here is a change that users see."""

from __future__ import annotations

import pytest

from hocket import Channel, Place, Plan, trace
from hocket.core.plan.text import shortened
from hocket.runtime.launch import launch_named
from tests.core.plans import APART, SPLIT
from tests.core.tiny import State, get, learn, on_host, planned, put
from tests.toys import Toy

GRAPH = """\
Toy: 8 environments, 24 environment steps an iteration, state 216 B
  repeat 3 times
    act (act)                            in      144 B   out       32 B
    env (env)                            in      224 B   out      128 B
  update (learn)                         in      408 B   out       28 B

"""

TEXTS = {
    "one program": (
        (Place("all", run=("env", "act", "learn"), on=("cpu:0",)),),
        """\
all: act, env, update  on cpu:0
    memory: state 216 B, at least 252 B at once
nothing crosses""",
    ),
    "actor and learner": (
        (Place("actor", run=("env", "act")), Place("learner", run=("learn",))),
        """\
actor: act, env
    memory: state 192 B, at least 592 B at once, up to 16 B in messages
learner: update
    memory: state 24 B, at least 428 B at once, up to 384 B in messages
learner -> actor: 16 B an iteration in 1 message
    w
actor -> learner: 384 B an iteration in 1 message
    x""",
    ),
    "two actors": (
        (Place("actor", run=("env", "act"), replicas=2), Place("learner", run=("learn",))),
        """\
actor x2: act, env
    memory of each: state 96 B, at least 304 B at once, up to 16 B in messages
learner: update
    memory: state 24 B, at least 428 B at once, up to 384 B in messages
learner -> actor: 32 B an iteration in 2 messages
    w
actor -> learner: 384 B an iteration in 2 messages
    x""",
    ),
    "environments apart": (
        (Place("env", run=("env",)), Place("rest", run=("act", "learn"))),
        """\
env: env
    memory: state 192 B, at least 480 B at once, up to 32 B in messages
rest: act, update
    memory: state 24 B, at least 568 B at once, up to 128 B in messages
env -> rest: 384 B an iteration in 3 messages
    x
rest -> env: 96 B an iteration in 3 messages
    `act`""",
    ),
    "two replicas of everything": (
        (Place("all", run=("env", "act", "learn"), replicas=2),),
        """\
all x2 (one program): act, env, update
    memory: state 216 B, at least 252 B at once
all averages: 20 B an iteration of each replica in 2 messages""",
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_text(name: str) -> None:
    places, text = TEXTS[name]
    assert str(Plan(trace(Toy(), 8), places)) == GRAPH + text


def test_what_is_not_the_default_is_said() -> None:
    channels = {"actor -> learner": Channel(capacity=3, lag=1, delay=0.002)}
    processes = {"launch": launch_named("processes"), "compiler_flags": "--xla_flag"}
    text = str(Plan(trace(Toy(), 8), SPLIT, channels, notes=("Why it is so.",), **processes))
    assert "actor -> learner: 384 B an iteration in 1 message, 1 iteration late" in text
    assert ", 2 ms of delay each, room for 3\n" in text
    assert "launched as processes with --xla_flag\n" in text
    assert text.endswith("\nWhy it is so.")
    parts = str(Plan(trace(Toy(), 8), APART, parts=2))
    assert "loops that cross places run in 2 parts of the environments\n" in parts


def test_calls_of_the_host_and_of_services_are_said() -> None:
    def run(s: State) -> tuple[State, State]:
        x = on_host(s["x"])
        box = put(s["box"], x)
        return {"x": x, "box": box, "w": learn(s["w"], get(box, x))}, {}

    text = str(planned(run, "x box w", {"env": "all", "learn": "all"}, served=True))
    assert (
        "doubled runs on the host: 1 calls an iteration (the compiled program stops and calls "
        "back), each with 16 B there and 16 B back" in text
    )
    assert "box: 4 numbers\n    all calls `put` 1 time an iteration: 20 B there and 4 B" in text
    assert "    all calls `get` 1 time an iteration: 20 B there and 16 B back" in text


def test_names_of_one_tree_are_put_together() -> None:
    names = ["learner.params.w", "learner.params.b", "learner.step", "output 0 of `act`"]
    assert shortened(names) == ["learner.params (2 arrays)", "learner.step", "`act`"]
