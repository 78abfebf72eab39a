"""The law of same numbers: every synchronous plan computes what the fused program computes.

These are plans that no strategy makes; `test_strategies.py` tests those of every strategy.
"""

from __future__ import annotations

import re
from typing import Any

import jax
import numpy as np
import pytest
from tests.cases import (
    ALGORITHMS,
    NUM_ENVS,
    REPLAY_APART,
    SPLITS,
    actors,
    execute,
    fused,
    graph_of,
    whole,
)

from hocket import Place, Plan, PlanError
from hocket.core.plan.checks import check
from hocket.runtime.fused import Fused
from hocket.testing import difference

# One worker compiles all programs of an algorithm.
NAMES = [pytest.param(n, marks=pytest.mark.xdist_group(n)) for n in ALGORITHMS]

EXACT, CLOSE = 20, 3  # iterations compared bit for bit, and within the tolerance
TOLERANCE = 1e-5


def assert_same(name: str, places: tuple[Place, ...], iterations: int, exact: bool) -> None:
    first, expected = fused(name, iterations, exact=exact)
    assert_learned(name, first, expected)
    start, executor = execute(name, places, iterations, exact)
    assert difference(start, first) == 0.0
    distance = difference(executor.state(), expected)
    assert distance == 0.0 if exact else distance <= TOLERANCE


def assert_learned(name: str, first: Any, last: Any) -> None:
    """Check that a run changed its state, since two runs that do nothing would agree."""
    assert difference(first.learner.params, last.learner.params) > 100 * TOLERANCE
    if name == "dqn":
        assert difference(first.replay, last.replay) > 100 * TOLERANCE


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", NAMES)
def test_split_is_equal_bit_for_bit(name: str, split: str) -> None:
    assert_same(name, SPLITS[split], EXACT, exact=True)


@pytest.mark.xdist_group("dqn")
@pytest.mark.parametrize(("iterations", "exact"), [(EXACT, True), (CLOSE, False)])
def test_replay_on_a_place_of_its_own(iterations: int, exact: bool) -> None:
    assert_same("dqn", REPLAY_APART, iterations, exact)


@pytest.mark.parametrize("name", NAMES)
def test_replicated_actors(name: str) -> None:
    assert_same(name, actors(4), CLOSE, exact=False)


@pytest.mark.parametrize("name", [n for n in NAMES if n.values[0] != "dqn"])
def test_whole_loop_in_replicas_on_several_devices(name: str) -> None:
    assert_same(name, whole(4, on=("cpu:0", "cpu:1")), CLOSE, exact=False)


@pytest.mark.xdist_group("dqn")
def test_whole_loop_of_dqn_is_refused() -> None:
    graph = graph_of("dqn")
    with pytest.raises(PlanError, match=r"the place `all` cannot run as replicas: `replay\."):
        check(Plan(graph, whole(2)))


DEVICES = ("cpu:0", "cpu:1", "cpu:2", "cpu:3")


@pytest.mark.parametrize("name", [n for n in NAMES if n.values[0] != "dqn"])
def test_four_devices_gather_nothing(name: str) -> None:
    """Only sums cross between devices. The batch is not gathered, environments are not exchanged.

    This is the plan of `anakin`, whose numbers `test_strategies.py` tests.
    """
    plan = Plan(graph_of(name), whole(on=DEVICES))
    text = Fused(plan, max_block=1).lower().compile().as_text()
    collectives = set(re.findall(r"= \S+ (all-\w+|collective-\w+|reduce-scatter)", text))
    assert collectives == {"all-reduce"}


@pytest.mark.xdist_group("dqn")
def test_four_devices_gather_only_new_experience() -> None:
    """DQN has one replay for all devices. New experience crosses between them, the replay never."""
    plan = Plan(graph_of("dqn"), whole(on=DEVICES))
    text = Fused(plan, max_block=1).lower().compile().as_text()
    sizes = [
        int(np.prod([int(n) for n in dims.split(",") if n]))
        for dims in re.findall(r"= \w+\[([\d,]*)\]\S* all-gather", text)
    ]
    transitions = ALGORITHMS["dqn"]().length * NUM_ENVS
    assert max(sizes, default=0) <= 2 * transitions * 4
    assert "all-to-all" not in text


def test_the_devices_are_there() -> None:
    assert len(jax.local_devices()) >= len(DEVICES)
