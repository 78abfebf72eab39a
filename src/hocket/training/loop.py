"""Functions that train an algorithm: at once, block by block, or as a pure function."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hocket.cluster import Cluster
from hocket.core.graph.host_calls import hosts
from hocket.core.graph.trace import Graph, init_state, trace
from hocket.core.plan.checks import check
from hocket.core.plan.data import Launch, Plan
from hocket.core.program.algorithm import Algorithm
from hocket.core.program.contract import check_state
from hocket.core.program.fragment import exact_fragments
from hocket.core.program.service import whole_specs
from hocket.core.program.tuning import tuned
from hocket.errors import PlanError
from hocket.runtime.compile.cache import enable_cache
from hocket.runtime.compile.tuning import tuning_here
from hocket.runtime.distributed import Split
from hocket.runtime.executor import Executor, by_seed
from hocket.runtime.fused import Fused
from hocket.runtime.launch import cluster_named, launch_named
from hocket.runtime.launch.nodes import LEASE_SECONDS, check_lease
from hocket.runtime.launch.projects import with_code
from hocket.runtime.refusals import refuse
from hocket.runtime.seeds import agents
from hocket.strategies import Strategy, resolve
from hocket.system.signals import Abandoned, Deferred
from hocket.training.report import Report, Result

BLOCK_SECONDS = 0.25
"""The seconds that a block of iterations should take. A run reports after each block."""
LATE_BLOCK_SECONDS = 0.5
"""The seconds that a block should take if the plan has channels with a lag. This is longer, because
all places wait for each other at the end of a block."""
PROFILE_AFTER = 0.5
"""Seconds of running after which the speed is steady, so that an iteration can be profiled."""


def plan(
    algorithm: Algorithm,
    *,
    distribute: str | Strategy | None = None,
    launch: str | None = None,
    cluster: str | Cluster | None = None,
    ship: Iterable[str | Path] = (),
    wait: float = 0.0,
    num_envs: int | None = None,
    exact: bool = False,
) -> Plan:
    """Return the plan of a run, without starting it. Print it to see what runs where.

    The strategy is `anakin` by default, `sebulba` if the environments run on the host, or on a
    cluster `actor_learner` with an actor on each node. `launch` says how instances run, as
    `threads` or as `processes`; by default the strategy decides. `cluster` names the machines, such
    as `loopback:2`; by default this machine alone. `ship` names the code to send there; by default
    the folders of your own modules that the algorithm uses. `wait` is how many seconds to wait for
    the nodes of a cluster such as `ray:nodes=4`.
    """
    count = algorithm.num_envs if num_envs is None else num_envs
    graph = trace(algorithm, count, exact=exact)
    nodes = cluster_named(cluster, wait) if isinstance(cluster, str) else cluster
    made = resolve(distribute or _default(graph, nodes))(graph, nodes or Cluster.local())
    if launch is not None:
        made = check(replace(made, launch=_launch_for(launch, nodes)))
    refuse(made, nodes)
    return with_code(made, ship)


def _default(graph: Graph, cluster: Cluster | None) -> str:
    """Return the strategy of a run that names none."""
    if hosts(graph):
        return "sebulba"
    nodes = len(cluster.nodes) if cluster else 0
    if not nodes:
        return "anakin"
    return f"actor_learner:actors={nodes}" if graph.num_envs % nodes == 0 else "actor_learner"


def _launch_for(name: str, cluster: Cluster | None) -> Launch:
    """Return how a launcher runs instances, and refuse one that is not the cluster's own."""
    if cluster and cluster.launch and name != cluster.launch.name:
        raise PlanError(
            f"launch={name!r} contradicts the cluster, whose instances are launched as "
            f"`{cluster.launch.name}`: leave `launch` out."
        )
    launch = launch_named(name)
    if launch.nodes and not cluster:
        raise PlanError(
            f"launch={name!r} starts instances on the nodes of a cluster, and this plan has none: "
            f"say cluster={name!r} (`--cluster {name}`) instead."
        )
    return launch


def iterate(
    algorithm: Algorithm,
    *,
    seed: int = 0,
    seeds: int | None = None,
    num_envs: int | None = None,
    iterations: int | None = None,
    distribute: str | Strategy | None = None,
    launch: str | None = None,
    cluster: str | Cluster | None = None,
    ship: Iterable[str | Path] = (),
    lease: float = LEASE_SECONDS,
    wait: float = 0.0,
    exact: bool = False,
    start_from: Any = None,
    record: bool = False,
) -> Iterator[Report]:
    """Train in a loop of your own, with a report about every quarter of a second.

        for report in hocket.iterate(PPO(env=make("CartPole-v1"))):
            print(report.env_steps, report.return_mean)

    `report.state` is the whole state at that moment; leaving the loop ends the run. `record` keeps
    every segment, message and wait for `report.executor.timeline()`; it slows the run down.
    """
    made = plan(
        algorithm, distribute=distribute, launch=launch, cluster=cluster, ship=ship,
        wait=wait, num_envs=num_envs, exact=exact,
    )  # fmt: skip
    total = count_iterations(made.iteration, iterations)
    executor = make_executor(made, total, seeds, record=record, lease=lease)
    if start_from is not None:
        expected = by_seed(whole_specs(made.graph.state), seeds)
        check_state(algorithm, made.graph.num_envs, expected, start_from)
    return carry_out(executor, total, first_key(seed, seeds), start_from=start_from)


def carry_out(
    executor: Executor,
    iterations: int,
    key: jax.Array,
    *,
    start_from: Any = None,
    late: Mapping[str, Any] | None = None,
    start_at: int = 0,
    pauses: Sequence[int] = (),
    profile: bool = False,
) -> Iterator[Report]:
    """Carry out a plan up to `iterations`, with a report after each block.

    The run begins with `key`. If `start_from` is given, it continues instead from this state, which
    was reached after `start_at` iterations, and from `late`, the values saved besides the state. A
    block ends at every multiple of each number in `pauses`, so there is a report at these
    iterations. With `profile`, one iteration is profiled, and the reports after it give each role's
    share of the time.
    """
    enable_cache()
    try:
        if start_from is None:
            executor.start(key)
        else:
            executor.load(start_from, late)
        yield from _advance(executor, iterations, start_at, pauses, profile)
    finally:
        executor.close()


def _advance(
    executor: Executor, iterations: int, start_at: int, pauses: Sequence[int], profile: bool
) -> Iterator[Report]:
    done, block, shares = start_at, 1, {}
    late = any(channel.lag for channel in executor.plan.channels.values())
    while done < iterations:
        before = executor.timings.run
        limit = min([iterations - done, *(p - done % p for p in pauses)])
        # Defer a Ctrl-C until the block is reported, so that no state is seen without its metrics.
        with Deferred() as interrupt:
            if profile and before > PROFILE_AFTER:
                count, metrics, shares = executor.profile(min(block, limit))
                profile = False
            else:
                count, metrics = executor.run(min(block, limit))
        done += count
        steps, timings = done * executor.plan.iteration.env_steps, replace(executor.timings)
        places = tuple(executor.activity())
        yield Report(done, steps, metrics, timings, shares, executor, places)
        if interrupt.seen:
            raise KeyboardInterrupt
        seconds = executor.timings.run - before
        block = _next_block(count, seconds, LATE_BLOCK_SECONDS if late else BLOCK_SECONDS)


def run(
    algorithm: Algorithm,
    *,
    seed: int = 0,
    seeds: int | None = None,
    num_envs: int | None = None,
    iterations: int | None = None,
    distribute: str | Strategy | None = None,
    launch: str | None = None,
    cluster: str | Cluster | None = None,
    ship: Iterable[str | Path] = (),
    lease: float = LEASE_SECONDS,
    wait: float = 0.0,
    exact: bool = False,
    start_from: Any = None,
    record: bool = False,
    watch: Callable[[Report], None] | None = None,
) -> Result:
    """Train, by default as one program on all devices, and return the result.

        result = hocket.run(PPO(env=make("CartPole-v1")), seed=1)
        action, _ = result.policy(obs)

    `iterations` overrides the algorithm's budget of environment steps; `watch` is called with every
    report. Ctrl-C ends the run, and the result is what has been learned so far. `seeds` trains that
    many agents in one program: `result.agent(i)` is the agent of seed `seed + i`. `launch` says how
    instances run, as `threads` or `processes`. `record` fills `result.timeline`, and slows the run
    down. `hocket.train` does the same and keeps the run in a folder.
    """
    rows: list[dict[str, np.ndarray]] = []
    report: Report | None = None
    try:
        for report in iterate(
            algorithm, seed=seed, seeds=seeds, num_envs=num_envs, iterations=iterations,
            distribute=distribute, launch=launch, cluster=cluster, ship=ship, lease=lease,
            wait=wait, exact=exact, start_from=start_from, record=record,
        ):  # fmt: skip
            rows.append(report.metrics)
            if watch:
                watch(report)
    except Abandoned:  # after a second Ctrl-C there may be no consistent state
        raise
    except KeyboardInterrupt:
        if report is None:
            raise
    assert report is not None
    metrics = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
    executor = report.executor
    return Result(
        algorithm, executor.plan, report.state, metrics, report.env_steps, report.timings, seeds,
        executor.timeline(),
    )  # fmt: skip


def program(
    algorithm: Algorithm,
    *,
    num_envs: int | None = None,
    iterations: int | None = None,
    exact: bool = False,
) -> Callable[[jax.Array], tuple[Any, dict[str, jax.Array]]]:
    """Return a whole run as a pure function, `train(key) -> (state, metrics)`, to jit or vmap.

    A `vmap` runs several seeds, or several values of a hyper-parameter:

        train = jax.jit(jax.vmap(hocket.program(PPO(env=env), iterations=200)))
        states, metrics = train(jax.random.split(jax.random.key(0), 8))

        def tune(rate):
            return hocket.program(PPO(env=env, learning_rate=rate), iterations=200)(key)
        jax.jit(jax.vmap(tune))(jnp.array([1e-4, 1e-3]))
    """
    count = algorithm.num_envs if num_envs is None else num_envs
    total = iterations or count_iterations(trace(algorithm, count), iterations)

    def train(key: jax.Array) -> tuple[Any, dict[str, jax.Array]]:
        with exact_fragments(exact), tuned(tuning_here(exact=exact)):
            state = init_state(algorithm, key, count)
            return jax.lax.scan(lambda s, _: algorithm.step(s), state, None, total)

    return train


def first_key(seed: int, seeds: int | None) -> jax.Array:
    """Return the PRNG key with which a run begins, made from `seed`.

    If `seeds` is given, return that many keys, made from `seed`, `seed + 1` and so on.
    """
    if seeds is None:
        return jax.random.key(seed)
    return jax.vmap(jax.random.key)(np.arange(seed, seed + seeds))


def make_executor(
    made: Plan, iterations: int, seeds: int | None = None, *, record: bool = False,
    lease: float = LEASE_SECONDS,
) -> Executor:  # fmt: skip
    """Make the executor of a plan, for blocks of at most `iterations`, without starting it."""
    refuse(check(made))
    check_lease(lease)
    alone, one_process = len(made.places) == 1, made.launch.one_process
    # A program on several devices cannot call the host from each of them, so `Split` must run it.
    driven = len(made.places[0].on) > 1 and (made.graph.served or bool(hosts(made.graph)))
    if seeds is not None and made.graph.served:
        raise PlanError(
            f"{seeds} seeds at once need one program, but here a service keeps one replay: "
            f'train them one after another, or use `distribute="anakin"`.'
        )
    if alone and one_process and not driven:
        return Fused(made, min(iterations, 1024), seeds, record=record)
    if seeds is None:
        return Split(made, record=record, lease=lease)
    if alone and not one_process:
        return agents(made, seeds, record=record, lease=lease)
    raise PlanError(_no_room_for(seeds, made))


def _no_room_for(seeds: int, made: Plan) -> str:
    """Return the error for several seeds at once under a plan that can train only one agent."""
    names = ", ".join(place.name for place in made.places)
    how = "threads" if made.launch.one_process else "processes"
    cure = f'`distribute="anakin{":callback=true" if hosts(made.graph) else ""}"` without `launch`'
    if made.launch.nodes:
        cure = f'`distribute="data_parallel:replicas={seeds}"`, which then trains an agent on each'
    return (
        f"{seeds} seeds at once need one program, but this plan runs as {how} of {names}. Use "
        f"{cure}, or train them one after another."
    )


def count_iterations(graph: Graph, iterations: int | None = None) -> int:
    """Return `iterations` if given, else as many as the budget of environment steps needs."""
    if iterations is None:
        if not graph.env_steps:
            raise ValueError(
                f"{type(graph.algorithm).__name__} has no fragment of role `env`, so its "
                f"environment steps cannot be counted: give `iterations`."
            )
        iterations = math.ceil(graph.algorithm.env_steps / graph.env_steps)
    if iterations < 1:
        raise ValueError(f"iterations must be at least 1, found {iterations}.")
    return iterations


def _next_block(block: int, seconds: float, wanted: float) -> int:
    """Return how many iterations fit into the wanted seconds, at most four times the last block."""
    fitting = int(block * wanted / max(seconds, 1e-6))
    return max(1, min(fitting, 4 * block))
