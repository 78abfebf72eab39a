"""An iteration takes several samples at once. Each is learned from once, and in time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hocket import Channel, Free, Pair, Place, Plan, PlanError, fragment, trace
from hocket.cluster import Cluster
from hocket.core.plan.checks import check
from hocket.core.plan.json import from_json, to_json
from hocket.core.plan.traffic import flows
from hocket.runtime.distributed import SAMPLE_AGE, Split
from hocket.runtime.executor import advance
from hocket.strategies import resolve
from hocket.testing import difference
from hocket.testing.seeded import Faults, Seeded
from tests.cases import graph_of
from tests.forked import quick
from tests.runtime.free import samples
from tests.runtime.free.samples import ACTORS, NUM_ENVS, Samples
from tests.toys import Toy

BATCH = 2
AGES = {"room for one of each": 2, "room for two of each": 5}


def plan_of(max_age: int, batch: int = BATCH, **more: Any) -> Plan:
    return replace(samples.plan_of(max_age, batch=batch), **more)


def check_ledger(metrics: dict[str, Any], max_age: int, start: int = 0) -> np.ndarray:
    """Return who made the samples of each iteration. Check that each came once and in time."""
    first = {name: metrics[name][:, :: NUM_ENVS // ACTORS] for name in ("who", "number")}
    made_with = metrics["made_with"].reshape(len(metrics["at"]), BATCH, -1)
    assert (made_with == made_with[..., :1]).all()  # the environments of a sample lie together
    ages = metrics["at"][:, None] - made_with[..., 0]
    assert (ages <= max_age).all() and (ages >= 0).all()
    assert (ages == metrics[SAMPLE_AGE]).all()
    for maker in np.unique(first["who"]):
        numbers = first["number"][first["who"] == maker]
        assert (np.diff(numbers) == 1).all() and (start or numbers[0] == 1)
    return first["who"]


@pytest.mark.parametrize("room", AGES)
def test_in_orders_by_seed(room: str) -> None:
    """Try 100 interleavings with stalls, then continue from the samples that were left."""
    max_age = AGES[room]
    crew = Seeded(plan_of(max_age), 0, Faults(stall=0.2))
    executor = Split(crew.plan, crew=crew)
    executor.start(jax.random.key(0))
    state = executor.state()
    advance(executor, 1)
    assert crew.ledger is not None
    pairs: set[tuple[int, ...]] = set()
    made, late, waiting = np.zeros(ACTORS, int), {}, []
    for seed in range(100):
        crew.reseed(seed)
        executor.load(state)
        pairs |= set(map(tuple, check_ledger(advance(executor, 12), max_age).tolist()))
        made = np.asarray(executor.state().number).reshape(ACTORS, -1)[:, 0]
        assert (made == crew.ledger.numbers["made"]).all()
        late = executor.late()
        waiting = [name for name in late if name.endswith("-age")]
        assert len(waiting) == made.sum() - 12 * BATCH  # all that are not learned from yet
    twice = {pair for pair in pairs if len(set(pair)) < BATCH}
    assert bool(twice) == (
        crew.plan.free and crew.plan.free.window > 1
    )  # both samples of one maker
    assert len(pairs - twice) == 6  # any two of the four
    executor.load(executor.state(), late)
    rows = advance(executor, 12)
    who = check_ledger(rows, max_age, start=1)
    for maker, count in enumerate(made):
        saved = sum(name.startswith(f"sample-{maker}-") for name in waiting)
        numbers = rows["number"][:, :: NUM_ENVS // ACTORS][who == maker * NUM_ENVS // ACTORS]
        assert numbers[0] == count - saved + 1  # the first that was not learned from


@pytest.mark.parametrize("launch", ["threads", "processes"])
def test_asynchrony_is_real(launch: str) -> None:
    plan = plan_of(5, launch=quick(launch))
    executor = Split(plan)
    executor.start(jax.random.key(0))
    metrics = advance(executor, 40)
    assert int(executor.state().version) == 40
    rows = advance(executor, 20)
    state, late, crossed = executor.state(), executor.late(), executor.nbytes()
    executor.close()
    check_ledger({name: np.concatenate([metrics[name], rows[name]]) for name in metrics}, 5)
    made = int(np.asarray(state.number).reshape(ACTORS, -1)[:, 0].sum())
    assert made == 60 * BATCH + len([name for name in late if name.endswith("-age")])
    nbytes = {(f.source, f.target): f.nbytes for f in flows(plan)}
    assert crossed["learner", "actor"] == 60 * nbytes["learner", "actor"]
    assert crossed["actor", "learner"] * BATCH == made * nbytes["actor", "learner"]


def test_one_program_puts_samples_together() -> None:
    """That holds in processes that pack, and if a sample has several transfers."""
    plan = resolve("actor_learner:actors=4,lag=free,batch=2")(
        graph_of("recurrent-ppo"), Cluster.local()
    )
    up = back = Channel(pack=True)
    channels = {"actor -> learner": up, "learner -> actor": back}
    executor = Split(replace(plan, channels=channels, launch=quick("processes")))
    executor.start(jax.random.key(0))
    first = executor.state()
    ages = advance(executor, 6)[SAMPLE_AGE]
    assert ages.shape == (6, 2) and ages.max() <= 2
    assert difference(first.learner.params, executor.state().learner.params) > 1e-3
    executor.load(executor.state(), executor.late())
    advance(executor, 3)
    executor.close()


def test_a_batch_of_all_is_an_iteration_of_all_environments() -> None:
    plan = plan_of(1, batch=ACTORS)
    assert plan.free and (plan.free.shares, plan.free.window) == (1, 1)
    assert plan.iteration is plan.graph
    executor = Split(plan)
    executor.start(jax.random.key(0))
    rows = advance(executor, 10)
    executor.close()
    assert (rows["who"] == np.arange(NUM_ENVS)).all()  # each environment, where it always is
    assert (rows["number"] == 1 + np.arange(10)[:, None]).all()


def test_what_the_plan_says() -> None:
    graph = graph_of("ppo")
    one, two = (
        resolve(f"actor_learner:actors=4,lag=free,max_age=6,batch={batch}")(graph, Cluster.local())
        for batch in (1, 2)
    )
    assert two.free and (two.free.shares, two.free.makers, two.free.window) == (2, 4, 3)
    assert two.iteration.num_envs == 4
    assert two.iteration.env_steps * 2 == graph.env_steps
    assert "from any of 4, 2 samples at a time" in str(two)
    assert "an iteration is of any 4 environments, one in 2" in str(two)
    up = [next(f for f in flows(plan) if f.source == "actor") for plan in (one, two)]
    assert (up[1].messages, up[1].nbytes) == (2 * up[0].messages, 2 * up[0].nbytes)
    back = [next(f for f in flows(plan) if f.source == "learner") for plan in (one, two)]
    assert back[0] == back[1]
    assert from_json(to_json(two), graph).schedule == two.schedule
    usual = resolve("actor_learner:actors=4,lag=free,batch=2")(graph, Cluster.local())
    assert usual.free and usual.free.window == 1


def test_an_option_refused() -> None:
    with pytest.raises(PlanError, match="batch=2 is for lag=free, but lag=1"):
        resolve("actor_learner:batch=2,lag=1")(trace(Toy(), 8), Cluster.local())


ACTOR, LEARNER = Place("actor", ("env", "act"), replicas=4), Place("learner", ("learn",))


def test_what_is_one_for_a_whole_sample_is_refused() -> None:
    """It may differ between two samples of one batch."""

    class Warm(Samples):
        @fragment(role="act")
        def warmth(self, version: Any) -> Any:
            return 1.0 / (1.0 + version.astype(jnp.float32))

        def step(self, state: Any) -> Any:
            after, row = super().step(state)
            total = self.update(state.version, self.warmth(state.version), *after[:2], after[1])[1]
            return after._replace(total=total), row

    pair, graph = Pair("learner", "actor", max_age=4), trace(Warm(), NUM_ENVS)
    check(Plan(graph, (ACTOR, LEARNER), schedule=Free(pair)))
    with pytest.raises(PlanError, match=r"`warmth`.*one value for all environments.*batch=1"):
        check(Plan(graph, (ACTOR, LEARNER), schedule=Free(replace(pair, batch=2))))
