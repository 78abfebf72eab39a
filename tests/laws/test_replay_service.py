"""DQN gives the same numbers with the replay service as with the replay on the device."""

from __future__ import annotations

import functools
from typing import Any

import jax
import pytest
from tests.cases import REPLAY_APART, SPLITS, actors, graph_of, whole

from hocket import Place, Plan
from hocket.core.graph.served import served
from hocket.core.graph.trace import Graph
from hocket.runtime.executor import advance
from hocket.testing import difference
from hocket.training.loop import make_executor

pytestmark = pytest.mark.xdist_group("dqn")

ITERATIONS = 20  # enough to fill the replay more than once
PLANS: dict[str, tuple[Place, ...]] = {
    "one program": whole(), "a replay apart": REPLAY_APART, **SPLITS,
}  # fmt: skip


@functools.cache
def graph(*, service: bool, exact: bool = True) -> Graph:
    plain = graph_of("dqn", exact=exact)
    return served(plain) if service else plain


def run(plan: Plan, iterations: int, start_from: Any = None) -> tuple[Any, dict[str, Any]]:
    """Run some iterations, and return the state and the metrics."""
    executor = make_executor(plan, iterations)
    try:
        if start_from is None:
            executor.start(jax.random.key(7))
        else:
            executor.load(start_from)
        metrics = advance(executor, iterations)
        return executor.state(), metrics
    finally:
        executor.close()


@functools.cache
def on_device(iterations: int = ITERATIONS, exact: bool = True) -> tuple[Any, Any]:
    return run(Plan(graph(service=False, exact=exact), whole()), iterations)


@pytest.mark.parametrize("name", PLANS)
def test_equal_bit_for_bit(name: str) -> None:
    """State and metrics are equal, even for the iterations before there are enough rows."""
    state, metrics = run(Plan(graph(service=True), PLANS[name]), ITERATIONS)
    expected, expected_metrics = on_device()
    assert difference(state, expected) == 0.0
    assert difference(metrics, expected_metrics) == 0.0
    assert int(expected.replay.lap) > 1  # rows were overwritten
    assert expected_metrics["td_error"][-1] > 0


def test_several_actors() -> None:
    """Their rows are joined and inserted by one place, in the order of the fused program."""
    state, _ = run(Plan(graph(service=True, exact=False), actors(4)), 3)
    assert difference(state, on_device(3, False)[0]) <= 1e-5


@pytest.mark.parametrize("before", [False, True], ids=["from the device", "from the service"])
@pytest.mark.parametrize("after", [False, True], ids=["to the device", "to the service"])
@pytest.mark.parametrize("cut", [3, 13])  # before the ring is full, and after
def test_a_run_goes_on_with_either(before: bool, after: bool, cut: int) -> None:
    first, _ = run(Plan(graph(service=before), whole()), cut)
    last, _ = run(Plan(graph(service=after), whole()), ITERATIONS - cut, first)
    assert difference(last, on_device()[0]) == 0.0


def test_a_state_can_be_loaded_while_it_runs() -> None:
    executor = make_executor(Plan(graph(service=True), SPLITS["env+act | learn"]), ITERATIONS)
    executor.start(jax.random.key(7))
    advance(executor, 5)
    after_five = executor.state()
    advance(executor, 4)
    executor.load(after_five)
    advance(executor, ITERATIONS - 5)
    executor.close()
    assert difference(executor.state(), on_device()[0]) == 0.0
