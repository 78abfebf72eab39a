"""One instance and its commands, here and in another process."""

from __future__ import annotations

import queue
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hocket import Place, Plan, trace
from hocket.runtime.launch.control import Answer, Answers, Failure
from hocket.runtime.launch.memory import PlanMemory
from hocket.runtime.launch.worker import (
    RemoteWorker,
    Worker,
    all_from_host,
    all_to_host,
    serve,
    workers_of,
)
from hocket.system.events import Closed
from tests.toys import Toy

ACTORS = (Place("actor", ("env", "act"), replicas=2), Place("learner", ("learn",)))


class Obedient:
    """A worker with commands of its own."""

    name = "actor/1"

    def add(self, a: int, b: int) -> int:
        return a + b

    def fail(self) -> None:
        raise KeyError("w")

    def wait(self) -> None:
        raise Closed


def answers_to(*commands: tuple[Any, ...]) -> list[Answer]:
    waiting: queue.SimpleQueue[tuple[Any, ...] | None] = queue.SimpleQueue()
    answers: Answers = queue.SimpleQueue()
    for command in (*commands, None):
        waiting.put(command)
    serve(cast(Worker, Obedient()), waiting, answers)
    return [answers.get_nowait() for _ in range(answers.qsize())]


def test_every_command_has_an_answer() -> None:
    assert answers_to(("add", 1, 2), ("add", 3, 4)) == [
        Answer("actor/1", "done", 3), Answer("actor/1", "done", 7),
    ]  # fmt: skip


def test_a_failure_is_an_answer_too() -> None:
    failed, done = answers_to(("fail",), ("add", 1, 2))
    assert (failed.instance, failed.outcome) == ("actor/1", "failed")
    failure: Failure = failed.content
    assert "Traceback" in failure.text and isinstance(failure.error, KeyError)
    assert done.content == 3


def test_a_run_that_is_over_waits_for_no_answer() -> None:
    assert answers_to(("wait",)) == []


def test_arrays_reach_another_process_and_come_back() -> None:
    arrays = {"key": jax.random.key(3), "w": jnp.arange(3.0), "half": jnp.ones(2, jnp.bfloat16)}
    on_host = all_to_host(arrays)
    assert all(type(x) is np.ndarray for x in on_host.values())
    specs = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in arrays.items()}
    other = np.ones(2)
    back = all_from_host({**on_host, "other": other}, specs)
    assert back.pop("other") is other  # as it is, without a spec
    assert back["key"].dtype == arrays["key"].dtype
    for name, x in all_to_host(back).items():
        np.testing.assert_array_equal(x, on_host[name])


def test_all_instances_are_made_in_order() -> None:
    plan = Plan(trace(Toy(), 8), ACTORS)
    workers = workers_of(plan, PlanMemory.create(plan))
    assert [worker.name for worker in workers] == ["actor/0", "actor/1", "learner/0"]
    assert workers[0].spans() == ([], 0)
    workers[0].record()
    workers[0].instance.account.note("wait", "learner", 0.0, 1.0)
    assert len(workers[0].spans()[0]) == 1 and workers[1].spans() == ([], 0)


@pytest.mark.parametrize("kind", [Worker, RemoteWorker])
def test_a_worker_holds_what_it_has_loaded(kind: type[Worker]) -> None:
    """Elsewhere it takes and returns arrays of the host."""
    plan = Plan(trace(Toy(), 8), ACTORS)
    state = dict(zip(plan.graph.block.inputs, jax.tree.leaves(Toy().init(jax.random.key(0), 8)),
                     strict=True))  # fmt: skip
    home = plan.projection.placement.home
    mine = {v: x for v, x in state.items() if home[v] == "learner"}
    given: Any = all_to_host(mine) if kind is RemoteWorker else mine
    worker = kind(plan, "learner", 0, PlanMemory.create(plan))
    worker.load(given, {}, cast(Any, None))
    held = worker.held()
    assert held.keys() == mine.keys() and worker.late() == {}
    assert all(isinstance(x, np.ndarray) == (kind is RemoteWorker) for x in held.values())
    expected = all_to_host(mine)
    for value, x in all_to_host(held).items():
        np.testing.assert_array_equal(x, expected[value])
