"""One running replica of a place, and the commands of a run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
import pytest

from hocket import Channel, Place, Plan
from hocket.runtime.instance.account import Wait
from hocket.runtime.instance.instance import AGES, Instance
from hocket.runtime.instance.metrics import MetricRows
from hocket.runtime.observe.status import IDLE, RECEIVING, new_statuses
from hocket.system.events import Closed
from tests.core.tiny import State, act, env, learn, traced

X = np.arange(4.0, dtype=np.float32) / 4


def run(s: State) -> tuple[State, State]:
    x = env(s["x"], act(s["x"]))
    w = learn(s["w"], x)
    return {"w": w, "x": x}, {"sum": x.sum(), "w": w}


GRAPH = traced(run, "w x")
ALONE = Plan(GRAPH, (Place("all", ("env", "act", "learn")),))
SPLIT = Plan(
    GRAPH, (Place("actor", ("env", "act")), Place("learner", ("learn",))),
    {"actor -> learner": Channel(lag=1)},
)  # fmt: skip


def instance_of(plan: Plan, place: str, **options: Any) -> Instance:
    order = [p.name for p in plan.places]
    instance = Instance(plan, place, 0, new_statuses(plan)[order.index(place)], **options)
    leaves = dict(zip(plan.graph.block.inputs, [jnp.zeros(()), jnp.asarray(X)], strict=True))
    instance.load(leaves, {})
    return instance


def steps_of(x: np.ndarray, w: float, count: int) -> tuple[list[float], list[float]]:
    """Return the metrics of some iterations."""
    sums, ws = [], []
    for _ in range(count):
        x = x + np.tanh(x)
        w = w - x.sum()
        sums.append(x.sum())
        ws.append(w)
    return sums, ws


def test_a_place_that_does_everything_needs_nobody() -> None:
    instance = instance_of(ALONE, "all")
    assert instance.ends == [] and instance.listen() == {} and instance.late() == {}
    sums, ws = steps_of(X, 0.0, 3)
    first = instance.run(2)
    second = instance.run(1)
    assert all(column.shape == (2,) for column in first.values())
    columns = [np.concatenate([first[v], second[v]]) for v in first]
    np.testing.assert_allclose(columns, [sums, ws], rtol=1e-5)
    status = instance.status
    assert (status["iteration"], status["phase"]) == (3, IDLE) and status["working"] > 0
    (w, _) = GRAPH.block.inputs
    np.testing.assert_allclose(instance.store.held()[w], ws[-1], rtol=1e-5)
    instance.load(dict(zip(GRAPH.block.inputs, [jnp.zeros(()), jnp.asarray(X)], strict=True)), {})
    assert status["iteration"] == 0
    np.testing.assert_array_equal(list(instance.run(2).values()), list(first.values()))


def test_it_may_be_compiled_before_it_runs() -> None:
    instance = instance_of(ALONE, "all")
    instance.compile()
    ((_, segment),) = instance.programs.shared.all()
    assert instance.status["iteration"] == 0 and instance.status["phase"] == IDLE
    instance.run(1)
    assert [x for _, x in instance.programs.shared.all()] == [segment]


def test_two_instances_find_each_other_and_part() -> None:
    actor, learner = instance_of(SPLIT, "actor"), instance_of(SPLIT, "learner")
    addresses = actor.listen() | learner.listen()
    for instance in (actor, learner):
        instance.connect(addresses, epoch=1)
    sums, ws = steps_of(X, 0.0, 3)
    first, second = actor.run(1), actor.run(1)  # there is room for a late message and the next
    np.testing.assert_allclose([first[v][0] for v in first], sums[:1], rtol=1e-5)
    np.testing.assert_allclose([second[v][0] for v in second], sums[1:2], rtol=1e-5)
    (column,) = learner.run(1).values()
    np.testing.assert_allclose(column, ws[:1], rtol=1e-5)
    assert len(learner.late()) == 1  # the message after the first
    actor.disconnect()
    with pytest.raises(Closed):
        learner.run(3)
    assert learner.status["phase"] == IDLE


class TwoTurns:
    """The turns of an instance that may begin two iterations."""

    def __init__(self) -> None:
        (transfer,) = SPLIT.projection.transfers
        self.wait, self.log = Wait(RECEIVING, transfer, (0,)), list[str]()

    def begin(self) -> bool:
        self.log.append("begin")
        return self.log.count("begin") <= 2

    def end(self) -> None:
        self.log.append("end")


def test_an_instance_with_turns_waits_before_each_iteration() -> None:
    instance, turns = instance_of(ALONE, "all"), TwoTurns()
    instance.turns = turns
    rows = MetricRows()
    waits = list(instance.steps(None, rows))
    assert waits == [turns.wait] * 3 and turns.log == ["begin", "end", "begin", "end", "begin"]
    assert {len(column) for column in instance.metrics(rows).values()} == {2}


def test_a_learner_reports_the_ages_of_its_samples() -> None:
    instance = instance_of(ALONE, "all")
    loaded: list[Any] = []
    instance.learning = cast(Any, SimpleNamespace(
        ages=lambda: np.array([[3], [1]]), late=lambda: {"sample": 1}, load=loaded.append,
    ))  # fmt: skip
    metrics = instance.run(2)
    assert metrics[AGES].tolist() == [[3], [1]] and len(metrics) == 3
    assert instance.late() == {"sample": 1}
    leaves = dict(zip(GRAPH.block.inputs, [jnp.zeros(()), jnp.asarray(X)], strict=True))
    instance.load(leaves, {"sample": 2})
    assert loaded == [{"sample": 2}]


class Average:
    """The average of a replica. `failed` is the text of an error inside a program."""

    failed = ""

    def __call__(self, *xs: Any) -> list[Any]:
        return list(xs)

    def counts(self) -> tuple[int, int, int]:
        return 4, 100, 0

    def check(self) -> None:
        if self.failed:
            raise RuntimeError(self.failed)


def test_an_average_is_asked_for_its_error_and_its_counts() -> None:
    average = Average()
    instance = instance_of(ALONE, "all", average=cast(Any, average))
    instance.run(1)
    assert (instance.status["messages"], instance.status["sent"]) == (4, 100)
    average.failed = "another replica has ended"
    with pytest.raises(RuntimeError, match="another replica has ended"):
        instance.run(1)
    assert instance.status["phase"] == IDLE
