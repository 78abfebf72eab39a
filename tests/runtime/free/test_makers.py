"""When makers of samples and their helpers may begin an iteration, and with which version."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from hocket import Free, Pair, Place, Plan, trace
from hocket.runtime.channels.links import versions
from hocket.runtime.free.learner import SampleTaker
from hocket.runtime.free.ledger import Ledger
from hocket.runtime.free.makers import Helper, Maker
from hocket.runtime.instance.instance import Instance
from hocket.runtime.launch.memory import PlanMemory
from hocket.runtime.launch.worker import workers_of
from hocket.runtime.observe.status import SENDING
from tests.runtime.free.samples import plan_of
from tests.toys import Toy


def parts_of(plan: Plan) -> tuple[dict[str, Instance], Ledger, Any]:
    """Return the instances of a plan, its ledger, and its newest version."""
    memory = PlanMemory.create(plan)
    instances = {worker.name: worker.instance for worker in workers_of(plan, memory)}
    assert memory.ledger and memory.newest
    return instances, memory.ledger, memory.newest


def with_helpers() -> Plan:
    places = (Place("env", ("env",), replicas=2), Place("act", ("act",)), Place("top", ("learn",)))
    return Plan(trace(Toy(), 8), places, schedule=Free(Pair("top", "act", max_age=2)))


def test_everybody_has_a_part() -> None:
    instances, *_ = parts_of(with_helpers())
    learner = instances.pop("top/0")
    assert isinstance(learner.learning, SampleTaker) and learner.turns is None
    turns = {name: type(instance.turns) for name, instance in instances.items()}
    assert turns == {"env/0": Helper, "env/1": Helper, "act/0": Maker}
    assert not any(instance.learning for instance in instances.values())


def test_a_sample_is_made_with_the_version_that_is_read() -> None:
    """That may be newer than the one that was announced, but never older."""
    plan = plan_of()
    instances, ledger, newest = parts_of(plan)
    maker, inbox = instances["actor/1"].turns, instances["actor/1"].inbox
    assert maker is not None and maker.wait.ready is not None
    assert not maker.wait.ready() and maker.wait.phase == SENDING
    ledger.publish(3)
    values = [plan.graph.values[v] for t in versions(plan) for v in t.values]
    newest.write(4, [jnp.full(x.shape, 4, x.dtype) for x in values])
    assert maker.wait.ready() and maker.begin()
    assert ledger.numbers["made_with"][1, 0] == 4
    for transfer in versions(plan):
        assert inbox.wait_for(transfer) is None
        for x in inbox.receive(transfer).values():
            np.testing.assert_array_equal(x, 4)
    maker.end()
    assert ledger.numbers["begun"].tolist() == ledger.numbers["made"].tolist() == [0, 1, 0, 0]


def test_a_maker_that_has_to_stop_begins_nothing() -> None:
    instances, ledger, _ = parts_of(plan_of())
    maker = instances["actor/2"].turns
    assert maker is not None and maker.wait.ready is not None
    ledger.set_stop(True)
    assert maker.wait.ready() and not maker.begin()
    assert ledger.numbers["stopped"].tolist() == [0, 0, 1, 0]
    assert not instances["actor/2"].inbox.lines


def test_a_helper_follows_the_maker() -> None:
    instances, ledger, _ = parts_of(with_helpers())
    helper, status = instances["env/1"].turns, instances["env/1"].status
    assert helper is not None and helper.wait.ready is not None
    ledger.publish(0)
    assert not helper.begin() and not helper.wait.ready()
    ledger.begin(0)
    assert helper.wait.ready() and helper.begin()
    helper.end()
    status["iteration"] += 1
    assert ledger.numbers["helped"].tolist() == [0, 1]
    assert not helper.begin()
    # The maker may begin one more sample before it sees that it has to stop.
    ledger.set_stop(True)
    assert not helper.wait.ready()
    ledger.begin(0)
    assert helper.wait.ready() and not helper.begin()
