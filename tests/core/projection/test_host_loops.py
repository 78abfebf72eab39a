"""Loops that call the host: when one compiled program can make all the calls by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
from jax import lax

from hocket.core.projection.host_loops import calls_inside, host_nodes, undriven, uses_host
from hocket.core.projection.instructions import Compute, Instruction, Repeat
from tests.core.tiny import (
    LENGTH,
    THREE,
    TWO,
    State,
    act,
    get,
    leaf,
    learn,
    on_host,
    only_loop,
    planned,
    put,
    titled,
)


def rollout(s: State) -> tuple[State, State]:
    """Some steps of the host's environment, all on one place."""
    x, xs = lax.scan(lambda x, _: (on_host(act(x)), x), s["x"], None, LENGTH)
    return {"w": learn(s["w"], xs), "x": x}, {}


def repeat_of(code: tuple[Instruction, ...]) -> Repeat:
    (loop,) = [step for step in code if isinstance(step, Repeat)]
    return loop


def test_a_program_that_calls_the_host_is_known() -> None:
    plan = planned(rollout, "w x", TWO)
    programs, graph = plan.projection.programs, plan.graph
    assert uses_host(programs["actor"]) and not uses_host(programs["learner"])
    assert list(host_nodes(programs["actor"])) == [titled(graph.nodes, "env").id]
    assert list(host_nodes(programs["learner"])) == []


def test_a_loop_in_which_nothing_crosses_can_be_one_segment() -> None:
    plan = planned(rollout, "w x", TWO)
    graph, loop = plan.graph, only_loop(plan.graph)
    segment = undriven(graph, repeat_of(plan.projection.programs["actor"]))
    rows, last = loop.ys[0].after, loop.carry[0].after
    assert segment == Compute((loop.id,), (leaf(graph, "x"),), tuple(sorted((last, rows))))


def test_a_loop_in_which_something_crosses_cannot() -> None:
    plan = planned(rollout, "w x", THREE)
    for place in ("env", "act"):
        assert undriven(plan.graph, repeat_of(plan.projection.programs[place])) is None


def test_calls_are_made_inside_unless_a_loop_stays_an_instruction() -> None:
    plan = planned(rollout, "w x", TWO)
    code, loop = plan.projection.programs["actor"], only_loop(plan.graph)
    assert calls_inside(plan.graph, code, driven=())
    assert not calls_inside(plan.graph, code, driven=[loop.id])
    apart = planned(rollout, "w x", THREE)
    assert not calls_inside(apart.graph, apart.projection.programs["env"], driven=())
    assert calls_inside(apart.graph, apart.projection.programs["act"], driven=())


def outside_of_loops(s: State) -> tuple[State, State]:
    return {"w": learn(s["w"], s["x"]), "x": on_host(s["x"])}, {}


def of_a_service(s: State) -> tuple[State, State]:
    box = put(s["box"], s["x"])
    return {"box": box, "x": get(box, jnp.sin(s["x"]))}, {}


@pytest.mark.parametrize(
    ("run", "names", "inside"), [(outside_of_loops, "w x", False), (of_a_service, "box x", True)]
)
def test_calls_outside_of_loops_are_made_between_programs_except_of_services(
    run: Callable[[State], Any], names: str, inside: bool
) -> None:
    plan = planned(run, names, {"env": "all", "learn": "all"}, served="box" in names)
    assert calls_inside(plan.graph, plan.projection.programs["all"], driven=()) == inside
