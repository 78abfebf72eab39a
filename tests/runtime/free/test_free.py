"""Free plans: nobody waits for a version, and no sample is too old, lost or learned from twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import jax
import numpy as np
import pytest

from hocket import trace
from hocket.cluster import Cluster
from hocket.runtime.distributed import SAMPLE_AGE, Split
from hocket.runtime.executor import advance
from hocket.runtime.launch.watch import InstanceError
from hocket.strategies import resolve
from hocket.testing import SMALL, difference
from hocket.testing.seeded import Faults, Seeded
from tests.cases import graph_of
from tests.forked import quick
from tests.host_toys import Walk
from tests.runtime.free.samples import ACTORS, MAX_AGE, plan_of


@pytest.fixture(scope="module")
def seeded() -> tuple[Split, Seeded, Any]:
    """An executor whose order of events the test chooses, its crew, and its first state."""
    crew = Seeded(plan_of(), 0, Faults(stall=0.2))
    executor = Split(crew.plan, crew=crew)
    executor.start(jax.random.key(0))
    state = executor.state()
    advance(executor, 1)  # the first block compiles, and has another size than later ones
    return executor, crew, state


def check_ledger(metrics: dict[str, Any], start: int = 0) -> np.ndarray:
    """Return the ages that samples report. Check that each maker's came once and in order."""
    ages = metrics["at"] - metrics["made_with"][:, 0]
    assert (ages <= MAX_AGE).all() and (ages >= 0).all()
    assert (ages == metrics[SAMPLE_AGE]).all()
    for maker in np.unique(metrics["who"][:, 0]):
        numbers = metrics["number"][metrics["who"][:, 0] == maker, 0]
        assert (np.diff(numbers) == 1).all() and (start or numbers[0] == 1)
    return ages


@pytest.mark.parametrize("first", range(0, 240, 40))
def test_no_sample_is_too_old_or_lost_or_used_twice(
    seeded: tuple[Split, Seeded, Any], first: int
) -> None:
    """Try 240 interleavings with stalls."""
    executor, crew, state = seeded
    assert crew.ledger is not None
    orders = set()
    for seed in range(first, first + 40):
        crew.reseed(seed)
        executor.load(state)
        metrics = advance(executor, 24)
        ages = check_ledger(metrics)
        assert ages.max() > 0
        after = executor.state()  # every maker has ended its sample by now
        made = np.asarray(after.number).reshape(ACTORS, -1)[:, 0]
        ledger = crew.ledger.numbers
        assert (made == ledger["made"]).all() and (ledger["begun"] == ledger["made"]).all()
        waiting = [name for name in executor.late() if name.endswith("-age")]
        assert len(waiting) == made.sum() - 24  # all that are made but not learned from yet
        orders.add(tuple(metrics["who"][:, 0]))
    assert len(orders) > 30


def test_a_seed_is_an_order(seeded: tuple[Split, Seeded, Any]) -> None:
    executor, crew, state = seeded
    runs = []
    for seed in (5, 5, 6):
        crew.reseed(seed)
        executor.load(state)
        runs.append((advance(executor, 20), executor.state()))
    (first, a), (again, b), (other, c) = runs
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert difference(a, b) == 0.0 and difference(a, c) > 0.0
    assert not np.array_equal(first["who"], other["who"])


def test_samples_under_way_are_saved(seeded: tuple[Split, Seeded, Any]) -> None:
    """After a restart they are learned from at the age that they have by then."""
    executor, crew, state = seeded
    crew.reseed(7)
    executor.load(state)
    advance(executor, 20)
    middle, late = executor.state(), executor.late()
    samples = [name for name in late if name.endswith("-age")]
    assert samples
    executor.load(middle, late)
    rows = advance(executor, 20)
    assert (rows["at"] == 20 + np.arange(20)).all()
    check_ledger(rows, start=1)
    assert rows["number"].min() <= np.asarray(middle.number).min()


def test_a_stalled_learner_stops_nobody_before_the_age_does() -> None:
    plan = plan_of(max_age=24)
    crew = Seeded(plan, 3)
    executor = Split(plan, crew=crew)
    executor.start(jax.random.key(0))
    advance(executor, 5)
    crew.starve()
    assert crew.ledger is not None
    ledger = crew.ledger.numbers
    assert plan.free and plan.free.window == 24 // ACTORS
    assert (ledger["begun"] - ledger["taken"] == plan.free.window).all()


def test_an_injected_crash_has_a_name() -> None:
    plan = plan_of()
    executor = Split(plan, crew=Seeded(plan, 1, Faults(crash=("actor/2", 3))))
    executor.start(jax.random.key(0))
    with pytest.raises(InstanceError, match=r"`actor/2` failed:(?s:.*)InjectedCrash: as asked"):
        advance(executor, 100)
    executor.close()


@pytest.mark.parametrize("launch", ["threads", "processes"])
def test_asynchrony_is_real(launch: str) -> None:
    executor = Split(replace(plan_of(), launch=quick(launch)))
    executor.start(jax.random.key(0))
    metrics = advance(executor, 60)
    state = executor.state()
    assert check_ledger(metrics).max() > 0
    assert int(state.version) == 60
    rows = advance(executor, 60)  # makers go on after all of them had stopped
    executor.close()
    assert int(executor.state().version) == 120
    both = {name: np.concatenate([metrics[name], rows[name]]) for name in metrics}
    check_ledger(both)


@pytest.mark.parametrize("launch", ["threads", "processes"])
def test_central_inference_learns_on_the_side(launch: str) -> None:
    """Environments and the place that acts for them wait for each other, not for the learner."""
    graph = graph_of("ppo")
    strategy = resolve("central_inference:envs=2,parts=1,lag=free,max_age=3")
    executor = Split(replace(strategy(graph, Cluster.local()), launch=quick(launch)))
    executor.start(jax.random.key(0))
    first = executor.state()
    ages = advance(executor, 12)[SAMPLE_AGE]
    assert 0 < ages.max() <= 3
    assert difference(first.learner.params, executor.state().learner.params) > 1e-3
    advance(executor, 3)
    executor.close()


def test_central_inference_in_orders_by_seed() -> None:
    """Helpers of a maker get turns at random, too, and all continue from a saved state."""
    plan = resolve("central_inference:envs=2,parts=1,lag=free,max_age=3")(
        graph_of("ppo"), Cluster.local()
    )
    crew = Seeded(plan, 0, Faults(stall=0.1))
    executor = Split(plan, crew=crew)
    executor.start(jax.random.key(0))
    late: dict[str, Any] = {}
    for seed in range(6):
        assert 0 < advance(executor, 8)[SAMPLE_AGE].max() <= 3
        state, late = executor.state(), executor.late()
        crew.reseed(seed)
        executor.load(state, late)
    assert any(name.endswith("-age") for name in late)
    advance(executor, 5)
    executor.close()


@pytest.mark.parametrize("launch", ["threads", "processes"])
def test_loaded_while_others_work(launch: str) -> None:
    executor = Split(replace(plan_of(), launch=quick(launch)))
    executor.start(jax.random.key(0))
    first = executor.state()
    advance(executor, 8)
    executor.load(first)  # the actors are in the middle of something
    check_ledger(advance(executor, 12))
    executor.close()


def test_a_failing_maker_ends_the_run_by_name() -> None:
    ppo = replace(cast(Any, SMALL["ppo"]()), env=Walk(fault_at=9))
    executor = Split(resolve("sebulba:lag=free")(trace(ppo, 8), Cluster.local()))
    executor.start(jax.random.key(0))
    with pytest.raises(InstanceError, match=r"`actor/\d` failed:(?s:.*)the walk is on fire"):
        advance(executor, 20)
    executor.close()


def test_a_learner_takes_a_part_of_the_environments() -> None:
    graph = graph_of("ppo")
    plan = resolve("actor_learner:actors=4,lag=free")(graph, Cluster.local())
    assert plan.free and plan.iteration.num_envs == 2 and plan.free.shares == 4
    assert plan.iteration.env_steps * 4 == graph.env_steps
    assert "free: the newest, for samples at most 4 iterations old" in str(plan)
    assert "from any of 4" in str(plan)
