"""Ape-X: actors fill a replay service, and a learner draws from it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.cases import LEARN, NUM_ENVS, REPLAY_APART, whole

import hocket
from hocket import Channel, ContractError, Place, Plan, PlanError, check, fragment, trace
from hocket.algorithms import DQN
from hocket.cluster import Cluster
from hocket.core.graph.served import served
from hocket.core.graph.trace import Graph
from hocket.core.plan.json import from_json, to_json
from hocket.core.program.service import Serving
from hocket.replay import connect, memory
from hocket.runtime.distributed import SAMPLE_AGE, Split
from hocket.runtime.executor import advance
from hocket.runtime.launch import launch_named
from hocket.runtime.launch.watch import InstanceError
from hocket.strategies import resolve
from hocket.testing import SMALL, difference
from hocket.testing.seeded import Faults, Seeded

pytestmark = pytest.mark.xdist_group("dqn")


def small(**changes: Any) -> DQN:
    return replace(cast(DQN, SMALL["dqn"]()), **changes)


@functools.cache
def graph() -> Graph:
    return trace(small(rate_new=True), NUM_ENVS)


def planned(words: str) -> Plan:
    return resolve(words)(graph(), Cluster.local())


def inserted(state: Any) -> int:
    """Return how many rows were ever inserted into a replay."""
    return int((state.replay.lap - 1) * state.replay.capacity + state.replay.head)


TEXT = """\
an iteration is of any 4 environments, one in 2: 16 environment steps

actor x2: act, env, assemble, rate, insert  on cpu:0
    memory of each: state 632 B, at least 1.9 KiB at once, up to 532 B in messages
learner: sample, update, reprioritize  on cpu:0
    memory: state 2.1 KiB, at least 7.2 KiB at once, up to 100 B in messages
replay is kept by a service over tcp: 512 rows of 44 B in 2 shards, 22.0 KiB, 2 batches drawn ahead
    actor calls `insert` 1 time an iteration: 788 B there and 4 B back
    learner calls `sample` 8 times an iteration: 1.0 KiB there and 14.0 KiB back
    learner calls `reprioritize` 8 times an iteration: 3.0 KiB there and 96 B back
learner -> actor: 532 B an iteration in 2 messages, free: the newest, for samples at most 2 \
iterations old
"""


def test_a_plan_says_who_asks_the_service_for_what() -> None:
    cluster = Cluster.local()
    one = replace(cluster, devices=cluster.devices[:1])
    plan = resolve("apex:actors=2,shards=2,carrier=tcp")(graph(), one)
    assert TEXT in str(plan)
    again = from_json(to_json(plan), plan.graph)
    assert str(again) == str(plan) and again.serving == Serving("tcp", 2, 2)


# What it does


@pytest.mark.parametrize("options", ["prefetch=0", "shards=2,prefetch=2"])
def test_everything_that_actors_make_is_inserted_once(options: str) -> None:
    """This holds in every order of events, and a seed repeats an order."""
    plan = planned(f"apex:actors=4,max_age=8,{options}")
    crew = Seeded(plan, 0, Faults(stall=0.2))
    executor = Split(plan, crew=crew)
    states = []
    for seed in (0, 1, 2, 1):  # seed 1 twice, but not first: a run's first block has one iteration
        crew.reseed(seed)
        executor.start(jax.random.key(0))
        metrics = advance(executor, 60)
        state, late = executor.state(), executor.late()
        waiting = sum(name.endswith("-age") for name in late)
        each = NUM_ENVS // 4 * small().length
        unreal = NUM_ENVS * (
            small().steps - 1
        )  # windows that begin before the first step are not inserted
        if "shards" not in options:  # shards do not number their rows
            assert inserted(state) == (60 + waiting) * each - unreal
        assert metrics[SAMPLE_AGE].max() <= 8
        states.append(state)
    executor.close()
    _, one, other, again = states
    assert difference(one.learner, other.learner) > 0.0
    if "prefetch=0" in options:
        assert difference(one, again) == 0.0


def test_it_learns_from_what_it_draws() -> None:
    executor = Split(planned("apex:shards=2"))
    executor.start(jax.random.key(0))
    first = executor.state()
    metrics = advance(executor, 120)
    state = executor.state()
    executor.close()
    assert difference(state.learner.params, first.learner.params) > 1e-3
    assert np.isfinite(metrics["loss"]).all() and metrics["loss"][-1] > 0.0
    assert metrics["bad_priorities"].sum() == 0
    priorities = state.replay.tree[state.replay.capacity :]
    assert len(np.unique(priorities)) > 20  # nearly every row has a priority of its own


@pytest.mark.parametrize(
    "ways", [("apex:shards=2", "anakin"), ("anakin", "apex"), ("apex", "apex")]
)
def test_any_plan_goes_on_from_its_state(ways: tuple[str, str]) -> None:
    before, after = ({"distribute": way, "iterations": 30, "num_envs": NUM_ENVS} for way in ways)
    first = hocket.run(small(), **before)
    last = hocket.run(small(), start_from=first.state, **after)
    assert inserted(last.state) > inserted(first.state) > 0
    assert difference(first.state.learner.params, last.state.learner.params) > 0.0


def test_actors_rate_what_they_insert() -> None:
    """A new row's priority is its error under the actor's parameters, not the highest so far."""
    dqn = small(rate_new=True, min_size=512)  # nothing is learned
    state = hocket.run(dqn, iterations=8, num_envs=NUM_ENVS).state
    replay, params = state.replay, state.learner.params
    size, rows = int(replay.size), replay.rows
    q = dqn._network.apply(params, rows.obs)[jnp.arange(len(rows.action)), rows.action]
    best = dqn._network.apply(params, rows.next_obs).max(-1)
    error = rows.reward + rows.discount * best - q
    expected = (np.abs(error) + 1e-3) ** dqn.alpha
    priorities = replay.tree[replay.capacity :]
    np.testing.assert_allclose(priorities[:size], expected[:size], rtol=1e-4)
    assert float(replay.highest) == pytest.approx(max(1.0, float(expected[:size].max())), rel=1e-4)


@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("launch", ["threads", "processes"])
def test_a_service_that_fails_ends_the_run_by_its_name(launch: str, after: int) -> None:
    executor = Split(replace(planned("apex:actors=2,prefetch=1"), launch=launch_named(launch)))
    executor.start(jax.random.key(0))
    if after:
        advance(executor, after)
    (live,) = executor._services._live.values()
    live.close()
    with pytest.raises(InstanceError, match=r"(?s)the service that keeps the replay failed: "):
        advance(executor, 500)
    executor.close()


@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize("carrier", ["shm", "tcp"])
def test_processes_reach_it_by_any_carrier(carrier: str) -> None:
    """Two actors with a shard each and a learner run as processes, and leave nothing behind."""
    executor = Split(
        replace(
            planned(f"apex:actors=2,shards=2,carrier={carrier}"), launch=launch_named("processes")
        )
    )
    executor.start(jax.random.key(0))
    advance(executor, 60)
    (live,) = cast(Any, executor._services._live.values())
    addresses = list(live.addresses())
    assert [address.partition(":")[0] for address in addresses] == [carrier] * 2
    assert all(len(table) > 0 for table in live.tables)
    first = executor.state()
    advance(executor, 60)
    executor.close()
    last = executor.state()
    assert difference(first.learner.params, last.learner.params) > 1e-3
    with pytest.raises(ConnectionError):
        connect(addresses[0], timeout=0.2)


# What is refused


class Told:
    """A DQN whose replay has something that a service cannot keep."""

    @dataclass(frozen=True)
    class Size(DQN):
        def step(self, state: Any) -> Any:
            state, metrics = super().step(state)
            return state, {**metrics, "rows": state.replay.size}

    @dataclass(frozen=True)
    class Masked(DQN):
        def step(self, state: Any) -> Any:
            after, metrics = super().step(state)
            keep = metrics["epsilon"] > 0.0
            return jax.tree.map(lambda a, b: jnp.where(keep, a, b), after, state), metrics

    @dataclass(frozen=True)
    class More(DQN):
        @fragment(role="replay")
        def reprioritize(self, replay: Any, keys: Any, priority: Any) -> Any:
            return memory.reprioritize(replay, keys, priority * 2.0)

    @dataclass(frozen=True)
    class Old(DQN):
        def step(self, state: Any) -> Any:
            after, metrics = super().step(state)
            _, batch = self.sample(state.replay, jnp.zeros(4))
            return after, {**metrics, "old": batch.probability}

    @dataclass(frozen=True)
    class Again(DQN):
        def step(self, state: Any) -> Any:
            after, metrics = super().step(state)
            return after._replace(replay=state.replay), metrics

    @dataclass(frozen=True)
    class Fixed(DQN):
        def step(self, state: Any) -> Any:
            def change(_: Any, u: Any) -> Any:
                keys, _ = self.sample(state.replay, u)
                return None, self.reprioritize(state.replay, keys, u)[1]

            _, counts = jax.lax.scan(change, None, jnp.zeros((3, 4)))
            return state, counts

    @dataclass(frozen=True)
    class Other(DQN):
        def step(self, state: Any) -> Any:
            state, metrics = super().step(state)
            return state._replace(replay=jax.tree.map(jnp.zeros_like, state.replay)), metrics

    @dataclass(frozen=True)
    class Two(DQN):
        def init(self, key: Any, num_envs: int) -> Any:
            state = super().init(key, num_envs)
            other = memory.init(jnp.zeros(3), 16)  # of other rows
            return state._replace(tail=(state.tail, other))

        def step(self, state: Any) -> Any:
            tail, other = state.tail
            state, metrics = super().step(state._replace(tail=tail))
            return state._replace(tail=(state.tail, other)), metrics


def told(cls: type[DQN]) -> DQN:
    return cls(**{name: getattr(small(), name) for name in DQN.__dataclass_fields__})


def misused(cls: type[DQN]) -> Callable[[], Plan]:
    return lambda: hocket.plan(told(cls), distribute="apex")


LEARNER = Place("learner", LEARN)
REFUSED: dict[str, Any] = {
    "no replay": (
        lambda: hocket.plan(SMALL["ppo"](), distribute="apex"),
        "PPO has no replay that a service could keep.*actor_learner",
    ),
    "a look at the rows": (
        misused(Told.Size),
        "a service keeps the replay, so the program does not have its `size`",
    ),
    "another function": (
        misused(Told.Masked),
        r"only fragments that do nothing but call its functions.*`jit` at .*does not call them",
    ),
    "more than a call": (
        misused(Told.More),
        r"only fragments that do nothing but call its functions.*`reprioritize` at .*does more",
    ),
    "an old one": (
        misused(Told.Old),
        "`sample` at .* uses the replay as it was before a change",
    ),
    "an old one in the state": (
        misused(Told.Again),
        "the state that `step` returns uses the replay as it was before",
    ),
    "the same in every turn of a loop": (
        misused(Told.Fixed),
        "`reprioritize` at .* uses the replay as it was before",
    ),
    "another ticket": (
        misused(Told.Other),
        "returns a state with a `replay.ticket` that no function of the replay",
    ),
    "two of a name": (
        misused(Told.Two),
        "has two parts named `replay`.*another `name`",
    ),
    "replicas of the whole loop": (
        lambda: Plan(served(graph()), whole(2)),
        r"`all` has 2 replicas, whose calls of `insert` would have no fixed order.*lag=free",
    ),
    "actors that insert, and wait": (
        lambda: Plan(
            served(graph()),
            (Place("actor", ("env", "act", "insert"), replicas=2), LEARNER),
        ),
        r"`actor` has 2 replicas, whose calls of `insert` would have no fixed order",
    ),
    "two places that use it": (
        lambda: Plan(served(graph()), (Place("actor", ("env", "act", "insert")), LEARNER)),
        "`actor` and `learner` use the service.*`insert`, `sample`, `reprioritize` on one place",
    ),
    "replicas that sample": (
        lambda: Plan(
            served(graph()),
            (
                Place("actor", ("env", "act", "replay", "update"), replicas=2),
                Place("learner", ("rate",)),
            ),
        ),
        "`actor` has 2 replicas, whose calls of",
    ),
    "shards that wait": (
        lambda: planned("apex:lag=0,shards=2"),
        "with shards=2 a service draws different rows than one program would.*lag=free",
    ),
    "batches ahead that wait": (
        lambda: planned("apex:lag=0,prefetch=1"),
        "with prefetch=1 a service draws different rows than one program would",
    ),
    "an unknown carrier": (lambda: planned("apex:carrier=udp"), "carrier.*`udp`.*shm"),
    "shards that do not share equally": (
        lambda: planned("apex:shards=3"),
        "512 rows, which 3 shards cannot share equally",
    ),
    "more shards than actors": (
        lambda: planned("apex:actors=1,shards=4"),
        "`actor` fills the 4 shards of the replay with `insert`. Its 1 replica would leave some "
        "empty: .* a multiple of shards=4. Use 4 replicas, or shards=1",
    ),
    "shards that are not filled equally": (
        lambda: resolve("apex:actors=6,shards=4")(trace(small(), 12), Cluster.local()),
        "`actor` fills the 4 shards.* Its 6 replicas would .*unequally.*or shards=2",
    ),
    "shards that hold less than a rollout": (
        lambda: hocket.plan(
            small(capacity=64, length=16), num_envs=2, distribute="apex:actors=2,shards=8"
        ),
        "the replay has 64 rows, 8 in each of 8 shards, but one shard is given 16 rows at once",
    ),
    "no shards": (lambda: planned("apex:shards=0"), "at least 1 shard.*shards=0"),
    "several seeds": (
        lambda: hocket.run(small(), distribute="apex", seeds=2, iterations=1),
        "2 seeds at once.*a service keeps one replay",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    wrong, words = REFUSED[name]
    with pytest.raises((PlanError, ContractError), match=f"(?s){words}"):
        check(wrong())


def test_a_replay_on_a_place_of_its_own_may_be_served() -> None:
    check(Plan(served(graph()), REPLAY_APART, {"actor -> replay": Channel(capacity=2)}))


@pytest.fixture
def no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hocket.replay.store._store", None)
    monkeypatch.delattr("hocket.replay.store._store", raising=False)


@pytest.mark.usefixtures("no_store")
def test_an_install_without_the_store_is_told_before_anything_starts() -> None:
    with pytest.raises(RuntimeError, match="installed without its replay store"):
        hocket.plan(small(), distribute="apex")


# Do they learn?

CARRIERS = ["near", "shm", "tcp"]


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize(("env", "wanted"), [("CartPole-v1", 475), ("Catch", 0.9)])
def test_four_actors(env: str, wanted: float, carrier: str) -> None:
    dqn = DQN(env=hocket.make(env), num_envs=64, rate_new=True)
    launch = "threads" if carrier == "near" else "processes"
    result = hocket.run(dqn, distribute=f"apex:actors=4,carrier={carrier}", launch=launch)
    assert result.return_mean >= wanted, result.return_mean
    assert result.metrics[SAMPLE_AGE].max() <= 4
