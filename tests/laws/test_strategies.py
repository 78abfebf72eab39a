"""The law of same numbers, for every algorithm, every synchronous strategy, threads and processes.

With a lag, the numbers are not the fused program's, but those of the fused program with a delay
line.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, cast

import jax
import numpy as np
import pytest
from tests.cases import LEARN, NUM_ENVS, SPLITS, distance, graph_of
from tests.clusters import hosts
from tests.forked import quick

from hocket import Channel, Place, Plan, PlanError, trace
from hocket.cluster import Cluster
from hocket.core.graph.trace import first_state
from hocket.core.program.fragment import exact_fragments
from hocket.envs import unroll
from hocket.runtime.distributed import Split
from hocket.runtime.executor import advance
from hocket.strategies import resolve, strategies
from hocket.testing import SMALL, check_strategy, difference
from hocket.training.loop import make_executor

TOLERANCE, ITERATIONS = 1e-5, 3
SEBULBA = "sebulba:actors=2,lag=0"
APEX = "apex:actors=2,lag=0"
SLICED = "sliced:devices=1"
SYNCHRONOUS = (
    "anakin", "actor_learner", "central_inference", "data_parallel", SEBULBA, APEX, SLICED,
)  # fmt: skip
# In these, the same kinds of values cross as in `impala` and `recurrent-ppo`, so processes test
# nothing new. The same holds for `sebulba`, where they cross between more actors.
THREADS_ONLY = {"a2c", "recurrent-impala"}


def launchers(name: str, strategy: str) -> list[str]:
    if strategy == SLICED:
        return ["processes"]  # each slice needs a process of its own
    if name in THREADS_ONLY or (strategy == SEBULBA and name != "ppo"):
        return ["threads"]
    return ["threads", "processes"]


CASES = [
    pytest.param(name, strategy, marks=pytest.mark.xdist_group(name))
    for name in SMALL
    for strategy in SYNCHRONOUS
    if strategy != APEX or name == "dqn"  # `test_apex.py` has the others
    if strategy != SLICED or name not in THREADS_ONLY
]
SHARDED = ("actor_learner:learners=2", "central_inference:envs=4,parts=1")
REDUCED = (
    "sliced:slices=4,devices=1",
    "sliced:slices=2,devices=2,reduce=hier",
    "sliced:slices=1,devices=2,cut=cpu,reduce=nccl",
    "sliced:slices=2,devices=2",
)
"""Every way in which two or four replicas in processes can average on CPUs."""
REFUSED = {("dqn", "data_parallel"), ("dqn", SLICED)}  # its replay is one ring for all environments


def test_every_strategy_is_tested() -> None:
    ours = {n for n, made in strategies().items() if made.__module__.startswith("hocket.")}
    assert ours == {words.partition(":")[0] for words in SYNCHRONOUS}


@pytest.mark.parametrize(("name", "strategy"), CASES)
def test_same_numbers(name: str, strategy: str) -> None:
    if (name, strategy) in REFUSED:
        with pytest.raises(PlanError, match=r"(?s)none of these.*`replay\."):
            check_strategy(strategy, {name: SMALL[name]()}, launch=["threads"])
        return
    plan = resolve(strategy)(graph_of(name), Cluster.local())
    for launcher in launchers(name, strategy):
        launched = replace(plan, launch=quick(launcher))
        assert distance(launched, name, ITERATIONS) <= TOLERANCE, launcher


@pytest.mark.xdist_group("ppo")
@pytest.mark.parametrize("words", REDUCED)
def test_same_numbers_whichever_way_slices_average(words: str) -> None:
    plan = resolve(words)(graph_of("ppo"), Cluster.local())
    assert not plan.launch.one_process
    plan = replace(plan, launch=quick("processes"))
    assert distance(plan, "ppo", ITERATIONS) <= TOLERANCE


@pytest.mark.xdist_group("ppo")
@pytest.mark.parametrize("split", SPLITS)
def test_processes_are_equal_bit_for_bit(split: str) -> None:
    """If no batch size changes, any number of iterations agrees. (Another test has threads.)"""
    graph = graph_of("ppo", exact=True)
    plan = Plan(graph, SPLITS[split], launch=quick("processes"))
    assert distance(plan, "ppo", 20, exact=True) == 0.0


@pytest.mark.xdist_group("ppo")
@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize("strategy", SHARDED)
def test_replicas_and_several_devices_together(strategy: str) -> None:
    check = check_strategy(strategy, {"ppo": SMALL["ppo"]()})
    assert check.differences.keys() == {"ppo, threads", "ppo, processes"}
    assert max(check.differences.values()) <= TOLERANCE < 100 * TOLERANCE < check.moved["ppo"]


@pytest.mark.xdist_group("ppo")
@pytest.mark.parametrize("launch", ["threads", "processes"])
@pytest.mark.parametrize("lag", [1, 2])
def test_late_channels_are_a_delay_line(lag: int, launch: str) -> None:
    ppo: Any = SMALL["ppo"]()
    graph = trace(ppo, NUM_ENVS, exact=True)
    strategy = resolve(f"actor_learner:actors=1,lag={lag}")
    made = strategy(graph, Cluster.local())
    executor = make_executor(Plan(graph, made.places, made.channels, launch=quick(launch)), 8)
    executor.start(jax.random.key(3))
    advance(executor, 8)
    late = executor.state()
    executor.close()

    @jax.jit
    def delayed(state: Any, old: Any) -> Any:
        with exact_fragments():
            act = partial(ppo.act, old.params.policy, old.moments)
            actor, rollout = unroll(ppo.env, act, state.actor, ppo.length)
            learner, _ = ppo.update(state.learner, rollout)
        return state._replace(actor=actor, learner=learner)

    state = first_state(graph, jax.random.key(3))
    start, line = state, [state.learner] * (lag + 1)
    for _ in range(8):
        state = delayed(state, line[0])
        line = [*line[1:], state.learner]
    assert difference(late, state) == 0.0
    assert difference(start, state) > 100 * TOLERANCE
    fused = make_executor(resolve("anakin:devices=1")(graph, Cluster.local()), 8)
    fused.start(jax.random.key(3))
    advance(fused, 8)
    assert difference(late, fused.state()) > 100 * TOLERANCE  # otherwise nothing was delayed


@pytest.mark.xdist_group("ppo")
def test_a_late_rollout_is_a_delay_line_too() -> None:
    """In the first iteration no rollout is late yet, so the learner reads the present one."""
    ppo: Any = SMALL["ppo"]()
    graph = trace(ppo, NUM_ENVS, exact=True)
    places = (Place("actor", ("env", "act")), Place("learner", LEARN))
    executor = Split(Plan(graph, places, {"actor -> learner": Channel(lag=1)}))
    executor.start(jax.random.key(3))
    advance(executor, 4)

    @jax.jit
    def act(state: Any) -> Any:
        with exact_fragments():
            act = partial(ppo.act, state.learner.params.policy, state.learner.moments)
            return unroll(ppo.env, act, state.actor, ppo.length)

    @jax.jit
    def learn(learner: Any, rollout: Any) -> Any:
        with exact_fragments():
            return ppo.update(learner, rollout)[0]

    state, before = first_state(graph, jax.random.key(3)), None
    for _ in range(4):
        actor, rollout = act(state)
        state = state._replace(actor=actor, learner=learn(state.learner, before or rollout))
        before = rollout
    assert difference(executor.state(), state) == 0.0


@pytest.mark.xdist_group("ppo")
def test_a_strategy_is_checked_on_a_cluster() -> None:
    ppo = {"ppo": SMALL["ppo"]()}
    check = check_strategy("actor_learner:actors=2", ppo, cluster="loopback:2")
    assert check.differences.keys() == {"ppo, loopback:2"}
    assert check.differences["ppo, loopback:2"] <= TOLERANCE < 100 * TOLERANCE < check.moved["ppo"]


@pytest.mark.xdist_group("ppo")
def test_a_check_on_a_cluster_says_what_cannot_be() -> None:
    ppo = {"ppo": SMALL["ppo"]()}
    with pytest.raises(ValueError, match=r"`loopback:2` has a launcher of its own: leave `launch`"):
        check_strategy("actor_learner", ppo, cluster="loopback:2", launch=["processes"])
    with pytest.raises(PlanError, match=r"none of these.*\n.*of one node"):
        check_strategy("anakin", ppo, cluster="loopback:2")
    with pytest.raises(PlanError, match="a `Cluster` without a launcher, so nothing can start"):
        check_strategy("actor_learner", ppo, cluster=hosts(2, 2))


@pytest.mark.xdist_group("ppo")
def test_a_late_strategy_cannot_be_checked() -> None:
    with pytest.raises(ValueError, match=r"`learner -> actor` has lag=1.*lag=0"):
        check_strategy("actor_learner:lag=1", {"ppo": SMALL["ppo"]()})


@pytest.mark.slow
@pytest.mark.parametrize("launch", ["threads", "processes"])
def test_wide_networks_in_four_replicas_do_not_hang(launch: str) -> None:
    """Blocking callbacks of several threads on one CPU device hang if matrices are large."""
    ppo = replace(cast(Any, SMALL["ppo"]()), hidden=(512, 512), epochs=1)
    graph = trace(ppo, 32)
    plan = resolve("data_parallel:replicas=4")(graph, Cluster(Cluster.local().devices[:1]))
    executor = make_executor(replace(plan, launch=quick(launch)), 1000)
    executor.start(jax.random.key(0))
    first = executor.state()
    metrics = advance(executor, 1000)
    executor.close()
    assert all(np.isfinite(rows).all() for rows in metrics.values())
    assert difference(first.learner.params, executor.state().learner.params) > 100 * TOLERANCE


@pytest.mark.xdist_group("ppo")
def test_halves_overlap() -> None:
    """While one half of the environments steps, actions for the other half are computed."""
    graph = graph_of("ppo")
    order: dict[int, list[str]] = {}
    for parts in (1, 2):
        made = resolve(f"central_inference:envs=1,parts={parts}")(graph, Cluster.local())
        executor = Split(made, record=True)
        executor.start(jax.random.key(0))
        advance(executor, 2)
        timeline = executor.timeline()
        assert timeline is not None
        order[parts] = [
            span.kind
            for span in timeline.spans
            if span.instance == "env/0" and span.kind in ("send", "receive")
        ]
    assert order[1][:4] == ["send", "receive", "send", "receive"]
    assert order[2][:4] == ["send", "send", "receive", "send"]
