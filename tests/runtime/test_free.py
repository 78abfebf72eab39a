"""Free plans: nobody waits for a version, and no sample is too old, lost or learned from twice."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hocket import Channel, Free, Pair, Place, Plan, PlanError, Policy, fragment, trace
from hocket.cluster import Cluster
from hocket.core.plan.checks import check
from hocket.core.plan.device_id import device_ids
from hocket.runtime.channels.late import array_names, renamed, sample_name
from hocket.runtime.channels.links import links
from hocket.runtime.distributed import SAMPLE_AGE, Split
from hocket.runtime.executor import advance
from hocket.runtime.free.learner import fitting_samples
from hocket.runtime.launch import launch_named
from hocket.runtime.launch.watch import InstanceError
from hocket.strategies import resolve
from hocket.testing import SMALL, difference
from hocket.testing.seeded import Faults, Seeded
from tests.cases import graph_of
from tests.host_toys import Walk
from tests.toys import Toy

ACTORS, MAX_AGE = 4, 9
NUM_ENVS = 2 * ACTORS


class LedgerState(NamedTuple):
    who: Any  # [N]
    number: Any  # [N]
    version: Any  # []
    total: Any  # []


@dataclass(frozen=True)
class Ledger:
    """An algorithm whose samples say who made them, their number, and the version they used."""

    env_steps: int = 1000
    num_envs: int = NUM_ENVS

    def init(self, key: Any, num_envs: int) -> LedgerState:
        start = jnp.zeros(num_envs, jnp.int32)
        return LedgerState(jnp.arange(num_envs), start, jnp.int32(0), jnp.float32(0))

    @fragment
    def env(self, who: Any, number: Any) -> Any:
        return who + 0, number + 1

    @fragment
    def act(self, version: Any, total: Any, number: Any) -> Any:
        return jnp.broadcast_to(version, number.shape), jnp.broadcast_to(total, number.shape)

    @fragment(role="learn")
    def update(self, version: Any, total: Any, who: Any, number: Any, seen: Any) -> Any:
        # A total that depends on the order of the samples.
        return version + 1, 0.9 * total + (who[0] * number[0] + seen[0]).astype(jnp.float32)

    def step(self, state: LedgerState) -> tuple[LedgerState, dict[str, Any]]:
        who, number = self.env(state.who, state.number)
        made_with, seen = self.act(state.version, state.total, number)
        version, total = self.update(state.version, state.total, who, number, seen)
        row = {"who": who, "number": number, "made_with": made_with, "at": state.version}
        return LedgerState(who, number, version, total), row

    def policy(self, state: LedgerState, explore: bool = False) -> Policy:
        return Policy(lambda obs, memory, key: (obs, memory))


def plan_of(max_age: int = MAX_AGE, actors: int = ACTORS) -> Plan:
    strategy = resolve(f"actor_learner:actors={actors},lag=free,max_age={max_age}")
    return strategy(trace(Ledger(), NUM_ENVS), Cluster.local())


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
    found = []
    for seed in (5, 5, 6):
        crew.reseed(seed)
        executor.load(state)
        found.append((advance(executor, 20), executor.state()))
    (first, a), (again, b), (other, c) = found
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


def test_an_injected_crash_has_a_name() -> None:
    plan = plan_of()
    executor = Split(plan, crew=Seeded(plan, 1, Faults(crash=("actor/2", 3))))
    executor.start(jax.random.key(0))
    with pytest.raises(InstanceError, match=r"`actor/2` failed:(?s:.*)InjectedCrash: as asked"):
        advance(executor, 100)
    executor.close()


@pytest.mark.parametrize("launch", ["threads", "processes"])
def test_asynchrony_is_real(launch: str) -> None:
    executor = Split(replace(plan_of(), launch=launch_named(launch)))
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
    executor = Split(replace(strategy(graph, Cluster.local()), launch=launch_named(launch)))
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
    executor = Split(replace(plan_of(), launch=launch_named(launch)))
    executor.start(jax.random.key(0))
    first = executor.state()
    advance(executor, 8)
    executor.load(first)  # the actors are in the middle of something
    check_ledger(advance(executor, 12))
    executor.close()


def late_samples(plan: Plan) -> dict[str, np.ndarray]:
    """Return the samples that are not learned from after 12 iterations, the same in every run."""
    executor = Split(plan, crew=Seeded(plan, 0))
    executor.start(jax.random.key(0))
    advance(executor, 12)
    late = {name: np.asarray(x) for name, x in executor.late().items()}
    executor.close()
    assert late
    return late


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


def test_a_failing_maker_ends_the_run_by_name() -> None:
    ppo = replace(cast(Any, SMALL["ppo"]()), env=Walk(fault_at=9))
    executor = Split(resolve("sebulba:lag=free")(trace(ppo, 8), Cluster.local()))
    executor.start(jax.random.key(0))
    with pytest.raises(InstanceError, match=r"`actor/\d` failed:(?s:.*)the walk is on fire"):
        advance(executor, 20)
    executor.close()


ACTOR, LEARNER = Place("actor", ("env", "act"), replicas=4), Place("learner", ("learn",))
BACK = "learner -> actor"


def back(max_age: int) -> Free:
    return Free(Pair("learner", "actor", max_age))


REFUSED: dict[str, tuple[tuple[Place, ...], Free, dict[str, Channel], str]] = {
    "an age of nothing": (
        (ACTOR, LEARNER), back(0), {},
        r"`learner -> actor` has max_age=0: with 4 of `actor`.*at least 4. That would wait like",
    ),
    "an age below the makers": (
        (ACTOR, LEARNER), back(3), {}, "max_age must be at least 4",
    ),
    "two pairs": (
        (ACTOR, LEARNER), Free([Pair("learner", "actor", 4), Pair("actor", "learner", 4)]), {},
        "one pair of a learner and makers, found `learner -> actor`, `actor -> learner`",
    ),
    "no pair": ((ACTOR, LEARNER), Free([]), {}, "one pair of a learner and makers, found none"),
    "a place nobody knows": (
        (ACTOR, LEARNER), Free(Pair("learner", "actr", 4)), {},
        "unknown place `actr` of the free pair .* Did you mean `actor`",
    ),
    "replicas that learn": (
        (replace(ACTOR, replicas=2), replace(LEARNER, replicas=2)), back(4), {},
        "`learner` has 2 replicas and is free of `actor`",
    ),
    "a delay": ((ACTOR, LEARNER), back(4), {BACK: Channel(delay=0.1)}, "takes no delay"),
    "capacity beside it": (
        (ACTOR, LEARNER), back(4), {"actor -> learner": Channel(capacity=3)},
        "`actor -> learner` takes no capacity.*`max_age` bounds",
    ),
    "a late channel beside it": (
        (ACTOR, LEARNER), back(4), {"actor -> learner": Channel(lag=1)},
        "`actor -> learner` is 1 iterations late, and `learner` and `actor` do not wait",
    ),
    "waiting in a loop": (
        (Place("env", ("env",)), Place("rest", ("act", "learn"))), Free(Pair("rest", "env", 4)), {},
        r"cannot be free.*3 times an iteration",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    places, schedule, channels, message = REFUSED[what]
    with pytest.raises(PlanError, match=message):
        check(Plan(trace(Toy(), 8), places, channels, schedule=schedule))


OPTIONS = {
    "sebulba:lag=fre": "`lag` of the strategy `sebulba` is a whole number, or `free`: found 'fre'",
    "sebulba:lag=1,max_age=3": "max_age=3 is for lag=free, but lag=1",
    "sebulba:batch=3": "batch=3 does not divide the 8 environments",
    "sebulba:actors=9": "asked for 9 actor devices, but 3 do not learn",
    "sebulba:acting=gpu": "acting='gpu': actions are computed on actor devices, or with acting=cpu",
    "actor_learner:lag=free,max_age=0": "max_age=0: with 2 of `actor`",
}


@pytest.mark.parametrize("words", OPTIONS)
def test_options_refused(words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(OPTIONS[words])):
        resolve(words)(trace(Toy(), 8), Cluster.local())


def test_options_of_sebulba() -> None:
    graph = trace(Toy(), 8)
    plan = resolve("sebulba:batch=2,acting=cpu")(graph, Cluster.local())
    assert plan.place("actor").replicas == 4 and plan.place("actor").on == device_ids(["cpu:0"])


def test_a_learner_with_something_for_each_environment_is_refused() -> None:
    places = (Place("actor", ("act",), replicas=2), Place("learner", ("env", "learn")))
    with pytest.raises(PlanError, match=r"cannot be free|has a part for each"):
        check(Plan(trace(Toy(), 8), places, schedule=back(2)))


def test_a_learner_takes_a_part_of_the_environments() -> None:
    graph = graph_of("ppo")
    plan = resolve("actor_learner:actors=4,lag=free")(graph, Cluster.local())
    assert plan.free and plan.iteration.num_envs == 2 and plan.free.shares == 4
    assert plan.iteration.env_steps * 4 == graph.env_steps
    assert "free: the newest, for samples at most 4 iterations old" in str(plan)
    assert "from any of 4" in str(plan)
