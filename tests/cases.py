"""Built-in algorithms at sizes that compile in seconds, and plans to place them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from hocket import Place, Plan, trace
from hocket.core.graph.trace import Graph
from hocket.runtime.executor import advance
from hocket.testing import SMALL, difference
from hocket.testing.same_numbers import carried_out
from hocket.training.loop import make_executor

NUM_ENVS = 8
SEED = 7

ALGORITHMS: dict[str, Callable[[], Any]] = SMALL

LEARN = ("learn", "gradient", "replay")

SPLITS: dict[str, tuple[Place, ...]] = {
    "env+act | learn": (Place("actor", ("env", "act")), Place("learner", LEARN)),
    "env | act+learn": (Place("env", ("env",)), Place("rest", ("act", *LEARN))),
    "env | act | learn": (Place("env", ("env",)), Place("act", ("act",)), Place("learner", LEARN)),
}

REPLAY_APART = (
    Place("actor", ("env", "act")), Place("replay", ("replay",)), Place("learner", ("learn",)),
)  # fmt: skip


def whole(replicas: int = 1, on: tuple[str, ...] = ()) -> tuple[Place, ...]:
    return (Place("all", ("env", "act", *LEARN), on=on, replicas=replicas),)


def actors(replicas: int) -> tuple[Place, ...]:
    return (Place("actor", ("env", "act"), replicas=replicas), Place("learner", LEARN))


@functools.cache
def graph_of(name: str, *, exact: bool = False) -> Graph:
    """The step of a small algorithm, traced once for all tests."""
    return trace(ALGORITHMS[name](), NUM_ENVS, exact=exact)


def execute(
    name: str, places: tuple[Place, ...], iterations: int, exact: bool = False
) -> tuple[Any, Any]:
    """Run some iterations; return the first state, and the executor, which has the last."""
    plan = Plan(graph_of(name, exact=exact), places)
    executor = make_executor(plan, iterations)
    executor.start(jax.random.key(SEED))
    first = executor.state()
    advance(executor, iterations)
    return first, executor


@functools.cache
def fused(name: str, iterations: int, *, exact: bool = False) -> tuple[Any, Any]:
    """The first and the last state of an algorithm as one program, run once for all tests."""
    first, executor = execute(name, whole(), iterations, exact)
    return first, executor.state()


def distance(plan: Plan, name: str, iterations: int, *, exact: bool = False) -> float:
    """How far the states of a plan and of the fused program are apart after some iterations."""
    first, expected = fused(name, iterations, exact=exact)
    # Otherwise two runs that do nothing would agree.
    assert difference(first.learner.params, expected.learner.params) > 1e-3
    return difference(carried_out(plan, SEED, iterations)[1], expected)
