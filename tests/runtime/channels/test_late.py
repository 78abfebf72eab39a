"""The names of late values, which are unique, and the same under every plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hocket import Plan
from hocket.cluster import Cluster
from hocket.core.projection.instructions import TransferId
from hocket.runtime.channels.late import array_names, late_names, late_specs, renamed, value_names
from hocket.runtime.channels.links import links
from hocket.strategies import resolve
from tests.cases import graph_of


def plan_of(algorithm: str, words: str) -> Plan:
    return resolve(words)(graph_of(algorithm), Cluster.local())


@pytest.mark.parametrize("algorithm", ["ppo", "recurrent-ppo", "dqn"])
@pytest.mark.parametrize(
    "words", ["actor_learner:actors=2,lag=2", "central_inference:envs=2,lag=1", "sebulba:lag=free"]
)
def test_no_two_arrays_have_one_name(algorithm: str, words: str) -> None:
    plan = plan_of(algorithm, words)
    names = [name for of_link in array_names(plan, links(plan)).values() for name in of_link]
    assert len(set(names)) == len(names) > 0
    specs = late_specs(plan)
    late = [n for messages in late_names(plan).values() for names in messages for n in names]
    assert sorted(specs) == sorted(late) and bool(late) == ("free" not in words)


def test_a_name_has_its_value_and_who_it_is_for() -> None:
    plan = plan_of("ppo", "actor_learner:actors=2,lag=1")
    bias = "learner.params.policy.params.layers_1.Dense_0.bias"
    assert {f"{bias}/actor/0/0", f"{bias}/actor/1/0"} <= late_specs(plan).keys()


def test_a_name_does_not_change_with_the_number_of_a_transfer() -> None:
    plan = plan_of("ppo", "actor_learner:actors=2,lag=1")
    every = list(links(plan))
    others = [replace(x, transfer=replace(x.transfer, id=x.transfer.id + 7)) for x in every]
    before, after = (array_names(plan, chosen).values() for chosen in (every, others))
    assert list(before) == list(after)


def test_a_name_does_not_change_with_a_line_of_source_code() -> None:
    graph = plan_of("dqn", "actor_learner:actors=2,lag=1").graph
    moved = tuple(replace(v, name=v.name.replace(".py:", ".py:1")) for v in graph.values)
    assert moved != graph.values
    assert value_names(graph) == value_names(replace(graph, values=moved))
    assert not any(":" in name or "/" in name for name in value_names(graph))


def test_earlier_names_are_read() -> None:
    """Earlier names had the numbers of a transfer, its source, its target, message and array."""
    plan = plan_of("ppo", "actor_learner:actors=2,lag=2")
    earlier: dict[str, Any] = {
        f"0-0-{target}-{k}-{j}": (target, k, j)
        for target in range(2) for k in range(2) for j in range(7)
    }  # fmt: skip
    (first, *_), names = links(plan), late_names(plan)
    assert len(first.arrays) == 7 and first.transfer.id == 0
    assert renamed(plan, {**earlier, "host": 1}) == {
        **{names[TransferId(0), 0, b][k][j]: (b, k, j) for b, k, j in earlier.values()}, "host": 1,
    }  # fmt: skip
    assert renamed(plan, renamed(plan, earlier)) == renamed(plan, earlier)
