"""Each instance has only its own fragments, and exactly what the plan says crosses."""

from __future__ import annotations

import jax
import pytest
from tests.cases import REPLAY_APART, SPLITS, actors, execute
from tests.toys import Toy

from hocket import Mean, Place, Plan, trace
from hocket.core.plan.traffic import averages, flows
from hocket.core.program.fragment import Label
from hocket.core.program.host import calling
from hocket.runtime.distributed import Split
from hocket.runtime.executor import advance
from hocket.runtime.instance.instance import Instance
from hocket.runtime.instance.segment import arguments
from hocket.runtime.launch import launch_named

CASES = {
    **{f"ppo, {name}": ("ppo", places) for name, places in SPLITS.items()},
    "ppo, two actors": ("ppo", actors(2)),
    "dqn, replay apart": ("dqn", REPLAY_APART),
}


@pytest.mark.parametrize("case", CASES)
def test_programs_and_bytes(case: str) -> None:
    name, places = CASES[case]
    _, executor = execute(name, places, iterations=2)
    plan = executor.plan
    for instance in executor.crew.instances:
        text = compiled(instance)
        for label in plan.graph.labels:
            mine = plan.where[label.name] == instance.place
            assert (str(Label(label.name, label.role)) in text) == mine, (instance.name, label)
    counted = executor.nbytes()
    assert counted == {(f.source, f.target): 2 * f.nbytes for f in flows(plan)}
    sent = executor.crew.statuses["messages"].sum()
    assert sent == 2 * sum(f.messages for f in flows(plan))


def compiled(instance: Instance) -> str:
    """Return the compiled programs of an instance as text."""
    texts, programs = [], instance.programs
    for (step, parts), segment in (*programs.shared.all(), *programs.own.all()):
        graph = programs.graph_of(parts)
        specs = []
        for v in arguments(step):
            rows = (instance.store.replicas,) if v in instance.store.stacked else ()
            shape = (*rows, *graph.values[v].shape)
            specs.append(jax.ShapeDtypeStruct(shape, graph.values[v].dtype))
        with programs.choices(), calling(instance.hosts):
            texts.append(segment.fn.lower(*specs).compile().as_text())
    return "\n".join(texts)


def test_averages_between_processes_are_seen() -> None:
    """The display and the trace show the bytes in the plan, and the time waiting for replicas."""
    plan = Plan(
        trace(Toy(), 8), (Place("replica", ("env", "act", "learn"), replicas=2),),
        means={"replica": Mean(delay=0.01)}, launch=launch_named("processes"),
    )  # fmt: skip
    executor = Split(plan, record=True)
    executor.start(jax.random.key(0))
    advance(executor, 3)
    calls, nbytes = averages(plan)["replica"]
    assert executor.crew.statuses["messages"].tolist() == [3 * calls] * 2
    assert executor.crew.statuses["sent"].tolist() == [3 * nbytes] * 2
    (activity,) = executor.activity()
    assert activity.waits["replica"] > 0.0 and activity.bytes_per_second > 0.0
    timeline = executor.timeline()
    executor.close()
    assert timeline is not None
    assert timeline.sent() == {"replica/0": 2 * nbytes, "replica/1": 2 * nbytes}  # not the first
    waits = [s for s in timeline.spans if s.kind == "wait" and s.name == "replica"]
    assert {s.instance for s in waits} == {"replica/0", "replica/1"}
    assert all(s.end - s.start >= 0.01 * calls for s in waits)


def test_parameters_cross_once_an_iteration() -> None:
    """They do not cross at every step, although `act` and `env` are on different places."""
    _, executor = execute("ppo", SPLITS["env | act | learn"], iterations=1)
    (flow,) = [f for f in flows(executor.plan) if (f.source, f.target) == ("learner", "act")]
    assert flow.messages == 1
