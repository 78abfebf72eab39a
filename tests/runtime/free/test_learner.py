"""The learner of a free plan: the samples that it takes, and those that it saves and loads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hocket import Plan
from hocket.runtime.channels.late import array_names, renamed, sample_name
from hocket.runtime.channels.links import links, versions
from hocket.runtime.distributed import Split
from hocket.runtime.free.learner import SampleTaker, fitting_samples
from hocket.runtime.launch.memory import PlanMemory
from hocket.runtime.launch.worker import workers_of
from hocket.testing.seeded import Seeded
from tests.runtime.free.samples import late_samples, plan_of


def taker_of(plan: Plan, ledger: Any = None, newest: Any = None) -> tuple[SampleTaker, Any, Any]:
    """Return the learner's part of a plan, its instance, and the memory of the plan."""
    memory: Any = PlanMemory.create(plan)
    learner = next(x.instance for x in workers_of(plan, memory) if x.instance.learning)
    taker = SampleTaker(learner, ledger or memory.ledger, newest or memory.newest)
    return taker, learner, memory


def test_a_version_is_published_as_a_whole() -> None:
    plan = plan_of()
    taker, learner, memory = taker_of(plan)
    learner.status["iteration"] = 5
    sent = 0
    for transfer in versions(plan):
        values = {v: jnp.zeros((), plan.graph.values[v].dtype) + v for v in transfer.values}
        taker.send(transfer, values)
        sent += len(values)
    assert memory.newest.read()[0] == 0  # until then makers see nothing of it
    taker.publish()
    version, message = memory.newest.read()
    assert version == memory.ledger.numbers["version"] == 5
    expected = [v for t in versions(plan) for v in t.values]
    assert [int(x) for x in message] == expected and len(expected) == sent > 1
    assert learner.status["sent"] == 4 * sent


def test_a_version_is_there_before_it_is_announced() -> None:
    """A maker that sees its number in the ledger must find it, or a newer one."""
    calls: list[str] = []
    ledger = SimpleNamespace(publish=lambda version: calls.append("announced"), wait=None)
    newest = SimpleNamespace(write=lambda version, message: calls.append("written"))
    taker_of(plan_of(), ledger, newest)[0].publish()
    assert calls == ["written", "announced"]


def test_samples_are_received_from_those_who_made_them() -> None:
    plan = plan_of(max_age=4, batch=2)
    taker, learner, memory = taker_of(plan)
    ledger = memory.ledger
    wait = taker.publish()
    assert wait.ready is not None and not wait.ready()
    for maker in (3, 1):
        ledger.begin(maker)
        ledger.end(maker)
    assert wait.ready()
    taker.take()
    assert plan.free is not None
    samples = [t.id for t in plan.projection.transfers if plan.free.is_any(t)]
    assert samples and all(learner.inbox.sources[t] == [1, 3] for t in samples)
    assert taker.ages().tolist() == [[0, 0]]
    assert taker.ages().tolist() == []  # since the last call
    assert ledger.numbers["taken"].tolist() == [0, 1, 0, 1]


def test_a_stale_announcement_does_not_undo_a_choice() -> None:
    """A maker may look a version up, be stopped for long, and then announce a sample with it."""
    crew = Seeded(plan_of(max_age=4), 0)
    (taker,) = (x.learning for x in crew.instances if x.learning)
    ledger = crew.ledger
    assert ledger is not None
    ledger.publish(9)
    ledger.begin(1)
    ledger.end(1)
    wait = taker.publish()
    assert wait.ready is not None
    ledger.publish(9)
    assert wait.ready()
    ledger.numbers["made_with"][0, 0], ledger.numbers["begun"][0] = 0, 1
    assert ledger.choice() is None  # until the maker has corrected its version
    taker.take()
    assert taker.ages().tolist() == [0]
    crew.close()


def test_samples_that_do_not_fit_are_left() -> None:
    late = late_samples(plan_of())
    assert fitting_samples(plan_of(), late) == late
    assert fitting_samples(plan_of(max_age=40), late) == late
    old = {name: x * 0 + 5 if name.endswith("-age") else x for name, x in late.items()}
    assert fitting_samples(plan_of(max_age=4), old) == {}
    for other in (plan_of(actors=2), plan_of(actors=8)):
        assert fitting_samples(other, late) == {}


def test_samples_by_their_earlier_names_are_gone_on_with() -> None:
    """Earlier names had the numbers of a transfer, of its source and of the array."""
    plan = plan_of()
    assert plan.free
    late = late_samples(plan)
    earlier = {
        sample_name(maker, k, name): f"sample-{maker}-{k}-{link.transfer.id}-{link.source}-{j}"
        for link in links(plan) if plan.free.is_sample(link.transfer)
        for maker in range(plan.free.makers) for k in range(plan.free.window)
        for j, name in enumerate(array_names(plan, [link])[link.key])
    }  # fmt: skip
    saved = {earlier.get(name, name): x for name, x in late.items()}
    assert saved.keys() != late.keys() and fitting_samples(plan, saved) == {}
    assert fitting_samples(plan, renamed(plan, saved)) == late
    crew = Seeded(plan, 0)
    executor = Split(plan, crew=crew)
    executor.start(jax.random.key(0))
    executor.load(executor.state(), renamed(plan, saved))
    again = {name: np.asarray(x) for name, x in executor.late().items()}
    executor.close()
    assert again.keys() == late.keys()
    assert all((again[name] == x).all() for name, x in late.items() if "/" in name)


def test_samples_of_another_batch_are_gone_on_with() -> None:
    late = late_samples(plan_of(5, batch=2))
    assert fitting_samples(plan_of(5, batch=2), late) == late
    assert fitting_samples(plan_of(40, batch=1), late) == late
    old = {name: x * 0 + 4 if name.endswith("-age") else x for name, x in late.items()}
    samples = [name for name in late if name.endswith("-age")]
    assert bool(fitting_samples(plan_of(5, batch=2), old)) == (len(samples) <= 2 * 2)
    assert fitting_samples(plan_of(4, batch=1), {n: x + 1 for n, x in old.items()}) == {}
