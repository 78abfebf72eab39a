"""The front door: train an algorithm, all at once, step by step, or as a pure function."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from hocket.cluster import Cluster
from hocket.core.graph.host_calls import hosts
from hocket.core.graph.trace import Graph, init_state, trace
from hocket.core.plan.checks import check
from hocket.core.plan.data import Plan
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
from hocket.runtime.launch import launch_named
from hocket.runtime.refusals import refuse
from hocket.runtime.seeds import agents
from hocket.strategies import Strategy, resolve
from hocket.system.signals import Abandoned, Deferred
from hocket.training.report import Report, Result

BLOCK_SECONDS = 0.25
"""How often a run comes back to report."""
LATE_BLOCK_SECONDS = 0.5
"""Where channels are late: they run dry at a block's end, and one place waits for the other."""
PROFILE_AFTER = 0.5
"""Seconds of running before the time is looked into: by then nothing is special any more."""


def plan(
    algorithm: Algorithm,
    *,
    distribute: str | Strategy | None = None,
    launch: str | None = None,
    num_envs: int | None = None,
    exact: bool = False,
) -> Plan:
    """Who would run where, and what would cross: print it. Starts nothing.

    By default as `anakin`, or as `sebulba` if the environments run on the host. `launch` says how
    instances run: as `threads`, or as `processes`; by default as the strategy has it, which is
    threads.
    """
    count = algorithm.num_envs if num_envs is None else num_envs
    graph = trace(algorithm, count, exact=exact)
    usual = "sebulba" if hosts(graph) else "anakin"
    made = resolve(distribute or usual)(graph, Cluster.local())
    if launch is not None:
        made = check(replace(made, launch=launch_named(launch)))
    refuse(made)
    return made


def iterate(
    algorithm: Algorithm,
    *,
    seed: int = 0,
    seeds: int | None = None,
    num_envs: int | None = None,
    iterations: int | None = None,
    distribute: str | Strategy | None = None,
    launch: str | None = None,
    exact: bool = False,
    start_from: Any = None,
    record: bool = False,
) -> Iterator[Report]:
    """The training loop in your hands: a report every quarter of a second or so.

        for report in hocket.iterate(PPO(env=make("CartPole-v1"))):
            print(report.env_steps, report.return_mean)

    `report.state` is the whole state at that moment; leaving the loop ends the run. With `record`,
    every segment, message and wait is kept for `report.executor.timeline()`, which takes time.
    """
    made = plan(algorithm, distribute=distribute, launch=launch, num_envs=num_envs, exact=exact)
    total = count_iterations(made.iteration, iterations)
    executor = make_executor(made, total, seeds, record=record)
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
    """Run a plan from a key, with a report now and then.

    Or from a state, which was reached after `start_at` of the iterations, with what was `late` on
    its way then. There is a report after
    every multiple of each number of iterations in `pauses`. With `profile`, one iteration is looked
    into, and reports after it say which part of the time each role took.
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
    looked = not profile
    while done < iterations:
        before = executor.timings.run
        limit = min([iterations - done, *(p - done % p for p in pauses)])
        with Deferred() as interrupt:
            if not looked and before > PROFILE_AFTER:
                count, metrics, shares = executor.profile(min(block, limit))
                looked = True
            else:
                count, metrics = executor.run(min(block, limit))
        done += count
        steps, timings = done * executor.plan.iteration.env_steps, replace(executor.timings)
        places = tuple(executor.activity())
        yield Report(done, steps, metrics, timings, shares, executor, places)
        if interrupt.seen:
            raise KeyboardInterrupt
        late = any(channel.lag for channel in executor.plan.channels.values())
        wanted = LATE_BLOCK_SECONDS if late else BLOCK_SECONDS
        block = _next_block(count, executor.timings.run - before, wanted)


def run(
    algorithm: Algorithm,
    *,
    seed: int = 0,
    seeds: int | None = None,
    num_envs: int | None = None,
    iterations: int | None = None,
    distribute: str | Strategy | None = None,
    launch: str | None = None,
    exact: bool = False,
    start_from: Any = None,
    record: bool = False,
    watch: Callable[[Report], None] | None = None,
) -> Result:
    """Train, and return what was learned. By default one program on all devices.

    `iterations` overrides the algorithm's budget of environment steps; `watch` is called with every
    report. Ctrl-C ends the run with what there is. With `seeds`, so many agents are trained in one
    program, from `seed` on: `result.agent(i)` is the one of `seed + i`. `launch` is how instances
    run, as `threads` or `processes`; `record` keeps `result.timeline`, which slows the run down.

        result = hocket.run(PPO(env=make("CartPole-v1")), seed=1)
        action, _ = result.policy(obs)

    `hocket.train` does the same and keeps it in a folder.
    """
    rows: list[dict[str, np.ndarray]] = []
    report: Report | None = None
    try:
        for report in iterate(
            algorithm, seed=seed, seeds=seeds, num_envs=num_envs, iterations=iterations,
            distribute=distribute, launch=launch, exact=exact, start_from=start_from, record=record,
        ):  # fmt: skip
            rows.append(report.metrics)
            if watch:
                watch(report)
    except Abandoned:
        raise
    except KeyboardInterrupt:
        if report is None:
            raise
    assert report is not None
    metrics = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
    plan, timeline = report.executor.plan, report.executor.timeline()
    state, steps, timings = report.state, report.env_steps, report.timings
    return Result(algorithm, plan, state, metrics, steps, timings, seeds, timeline)


def program(
    algorithm: Algorithm,
    *,
    num_envs: int | None = None,
    iterations: int | None = None,
    exact: bool = False,
) -> Callable[[jax.Array], tuple[Any, dict[str, jax.Array]]]:
    """The whole run as a pure `train(key) -> (state, metrics)`: jit it, vmap it.

    Seeds are a vmap, and so are hyper-parameters:

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
    """The key that a run begins with, or those of `seeds` runs from `seed` on."""
    if seeds is None:
        return jax.random.key(seed)
    return jax.vmap(jax.random.key)(np.arange(seed, seed + seeds))


def make_executor(
    made: Plan, iterations: int, seeds: int | None = None, *, record: bool = False
) -> Executor:
    """The executor of a plan, for blocks of at most so many iterations; nothing starts yet."""
    refuse(check(made))
    # One program on several devices cannot call the host from each: it is driven from there.
    apart = len(made.places[0].on) > 1 and (made.graph.served or bool(hosts(made.graph)))
    if seeds is not None and made.graph.served:
        raise PlanError(
            f"{seeds} seeds at once are one program, and here a service keeps one replay: train "
            f'them one after another, or use `distribute="anakin"`.'
        )
    if len(made.places) == 1 and made.launch.one_process and not apart:
        return Fused(made, min(iterations, 1024), seeds, record=record)
    if seeds is not None and len(made.places) == 1 and not made.launch.one_process:
        return agents(made, seeds, record=record)
    if seeds is not None:
        names = ", ".join(place.name for place in made.places)
        how = "threads" if made.launch.one_process else "processes"
        fused = "anakin:callback=true" if hosts(made.graph) else "anakin"
        raise PlanError(
            f"{seeds} seeds at once are one program, and this plan runs as {how} of "
            f'{names}. Use `distribute="{fused}"` as threads, or train them one after another.'
        )
    return Split(made, record=record)


def count_iterations(graph: Graph, iterations: int | None = None) -> int:
    """So many, or as many as the algorithm's budget of environment steps needs."""
    if iterations is None and not graph.env_steps:
        raise ValueError(
            f"{type(graph.algorithm).__name__} has no fragment of role `env`, so its environment "
            f"steps cannot be counted: give `iterations`."
        )
    if iterations is None:
        iterations = math.ceil(graph.algorithm.env_steps / graph.env_steps)
    if iterations < 1:
        raise ValueError(f"iterations must be at least 1, found {iterations}.")
    return iterations


def _next_block(block: int, seconds: float, wanted: float) -> int:
    """As many iterations as fit into the wanted time, growing at most fourfold."""
    fitting = int(block * wanted / max(seconds, 1e-6))
    return max(1, min(fitting, 4 * block))
