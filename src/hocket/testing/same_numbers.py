"""Does an algorithm keep its contract, and a strategy the law of same numbers?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hocket.algorithms import A2C, DQN, IMPALA, PPO, RecurrentPPO
from hocket.cluster import Cluster
from hocket.core.graph.trace import Graph, trace
from hocket.core.plan.checks import check as check_plan
from hocket.core.plan.data import Place, Plan
from hocket.core.program.algorithm import Algorithm, Policy
from hocket.envs import make
from hocket.errors import ContractError, PlanError
from hocket.runtime.executor import Executor, advance
from hocket.runtime.launch import launch_named
from hocket.strategies import Strategy, resolve
from hocket.training.loop import make_executor

SMALL: dict[str, Callable[[], Algorithm]] = {
    "ppo": lambda: PPO(
        env=make("CartPole-v1"), length=8, epochs=2, minibatches=2, hidden=(16,), env_steps=20_000
    ),
    "ppo-continuous": lambda: PPO(
        env=make("Pendulum-v1"), length=8, epochs=2, minibatches=2, hidden=(16,), env_steps=20_000
    ),
    "recurrent-ppo": lambda: RecurrentPPO(
        env=make("PositionOnlyCartPole"), length=8, epochs=2, minibatches=2, hidden=(16,),
        memory=8, env_steps=20_000,
    ),
    "a2c": lambda: A2C(env=make("CartPole-v1"), length=8, hidden=(16,), env_steps=20_000),
    "impala": lambda: IMPALA(env=make("CartPole-v1"), length=8, hidden=(16,), env_steps=20_000),
    "recurrent-impala": lambda: IMPALA(
        env=make("PositionOnlyCartPole"), length=8, hidden=(16,), memory=8, env_steps=20_000
    ),
    "dqn": lambda: DQN(
        env=make("CartPole-v1"), length=4, capacity=512, min_size=64, batch_size=32, hidden=(16,),
        env_steps=20_000,
    ),
}  # fmt: skip
"""The algorithms of this package at sizes that compile in seconds."""


@dataclass
class Check:
    """What `check_algorithm` found; printing it shows a line for each plan."""

    graph: Graph
    differences: dict[str, float] = field(default_factory=dict)
    """For each plan that ran, how far its state is from the fused program's."""
    refused: dict[str, str] = field(default_factory=dict)
    """For each plan that cannot give the fused numbers, why: not a fault, if the place is such that
    it belongs to one program (a replay)."""
    unchanged: tuple[str, ...] = ()
    """Floating-point leaves of the state that stayed as they were, so that nothing is known of
    whatever computes them: is there a warm-up? Check with sizes at which it is over."""

    def __str__(self) -> str:
        ran = [f"  {name}: max difference {value:.2g}" for name, value in self.differences.items()]
        refused = [f"  {name}: refused: {why}" for name, why in self.refused.items()]
        still = (
            [f"  never changed (a warm-up?): {', '.join(self.unchanged)}"] if self.unchanged else []
        )
        end = f"ok: {len(ran)} plans agree with the fused program, {len(refused)} refused"
        return "\n".join([str(self.graph), *ran, *refused, *still, end])


def check_algorithm(
    algorithm: Algorithm,
    *,
    num_envs: int = 8,
    iterations: int = 3,
    tolerance: float = 1e-4,
    seed: int = 0,
) -> Check:
    """Verify an algorithm's contract in seconds: trace it, split it, replicate it, and compare.

    Runs it fused; with actors and learner apart; with every fragment on a place of its own; with
    two replicated actors; and with the whole loop in two replicas. A plan under which the algorithm
    cannot give the fused numbers is named in the result with the reason; one that runs and gives
    others is an error.

        print(check_algorithm(SAC(env=make("Pendulum-v1"))))
    """
    graph = trace(algorithm, num_envs)
    graph.at(2 * num_envs)
    if not graph.labels:
        raise ContractError(
            f"{type(algorithm).__name__}.step calls no fragment, so nothing can be placed. Mark "
            f'its parts: `@fragment(role="act")`, `@fragment(role="learn")`.'
        )
    first, expected = carried_out(
        Plan(graph, (Place("all", run=names_of(graph)),)), seed, iterations
    )
    if not difference(first, expected):
        raise ContractError(
            f"{iterations} iterations of {type(algorithm).__name__} changed nothing."
        )
    if not isinstance(algorithm.policy(expected), Policy):
        raise ContractError(f"{type(algorithm).__name__}.policy must return a hocket.Policy.")
    check = Check(graph, unchanged=_unchanged(graph, first, expected))
    for name, places in _plans(graph).items():
        try:
            plan = check_plan(Plan(graph, places))
        except PlanError as error:
            if all(place.replicas == 1 for place in places):
                raise
            check.refused[name] = str(error)
            continue
        found = difference(carried_out(plan, seed, iterations)[1], expected)
        if not found <= tolerance:
            raise ContractError(
                f"{type(algorithm).__name__} computes other numbers as {name}: they differ by "
                f"{found:.2g} after {iterations} iterations (allowed: {tolerance:.2g}). Is every "
                f"function pure, with the same result for the same arguments?\n{plan}"
            )
        check.differences[name] = found
    return check


@dataclass
class StrategyCheck:
    """What `check_strategy` found; printing it shows a line for each algorithm and launcher."""

    differences: dict[str, float] = field(default_factory=dict)
    """For each that ran, how far its state is from the fused program's."""
    moved: dict[str, float] = field(default_factory=dict)
    """How far the fused program's state is from where it began: otherwise nothing was compared."""
    refused: dict[str, str] = field(default_factory=dict)
    """For each algorithm that the strategy cannot place, why."""

    def __str__(self) -> str:
        ran = [f"  {name}: max difference {value:.2g}" for name, value in self.differences.items()]
        refused = [f"  {name}: refused: {why}" for name, why in self.refused.items()]
        end = f"ok: {len(ran)} runs agree with the fused program, {len(refused)} refused"
        return "\n".join([*ran, *refused, end])


def check_strategy(
    strategy: str | Strategy,
    algorithms: Mapping[str, Algorithm] | None = None,
    *,
    launch: Sequence[str] = ("threads", "processes"),
    num_envs: int = 8,
    iterations: int = 3,
    tolerance: float = 1e-5,
    exact: bool = False,
    seed: int = 0,
) -> StrategyCheck:
    """Verify that a strategy keeps the law of same numbers, for the package's algorithms or yours.

    Every algorithm runs as one program, and as the strategy has it with each launcher. One that the
    strategy cannot place is named with the reason; one that gives other numbers is an error. After
    more than a few iterations numbers drift apart, since training is chaotic, unless it is `exact`
    and no batch size changes.

        print(check_strategy("actor_learner:actors=4"))
        print(check_strategy(mine(), {"sac": SAC(env=make("Pendulum-v1"))}))
    """
    check = StrategyCheck()
    for name, algorithm in (algorithms or {k: small() for k, small in SMALL.items()}).items():
        graph = trace(algorithm, num_envs, exact=exact)
        try:
            plan = resolve(strategy)(graph, Cluster.local())
        except PlanError as error:
            check.refused[name] = str(error)
            continue
        late = [f"`{name}` has lag={x.lag}" for name, x in plan.channels.items() if x.lag]
        late += [f"`{plan.free.learner}` waits for nobody"] if plan.free else []
        if late:
            raise ValueError(
                f"{late[0]}, so the numbers are not the fused program's: check the strategy with "
                f"lag=0."
            )
        first, expected = carried_out(
            Plan(graph, (Place("all", run=names_of(graph)),)), seed, iterations
        )
        check.moved[name] = difference(first, expected)
        for launcher in launch:
            launched = replace(plan, launch=launch_named(launcher))
            found = difference(carried_out(launched, seed, iterations)[1], expected)
            if not found <= tolerance:
                raise PlanError(
                    f"{name} computes other numbers as {launcher}: they differ by {found:.2g} "
                    f"after {iterations} iterations (allowed: {tolerance:.2g}).\n{plan}"
                )
            check.differences[f"{name}, {launcher}"] = found
    if not check.differences:
        why = "\n".join(f"{name}: {reason}" for name, reason in check.refused.items())
        raise PlanError(f"the strategy can place none of these algorithms:\n{why}")
    return check


def difference(a: Any, b: Any) -> float:
    """How far two states are apart: the largest difference, relative where values exceed one."""
    return max(
        (
            _leaf_difference(x, y)
            for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
        ),
        default=0.0,
    )


def _unchanged(graph: Graph, first: Any, last: Any) -> tuple[str, ...]:
    leaves = zip(graph.values, jax.tree.leaves(first), jax.tree.leaves(last), strict=False)
    return tuple(
        value.name
        for value, a, b in leaves
        if jnp.issubdtype(a.dtype, jnp.floating) and not _leaf_difference(a, b)
    )


def _leaf_difference(x: Any, y: Any) -> float:
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x, y = jax.random.key_data(x), jax.random.key_data(y)
    x, y = np.asarray(x), np.asarray(y)
    if not np.issubdtype(x.dtype, np.inexact):
        return float(np.any(x != y))
    x, y = x.astype(np.float64), y.astype(np.float64)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    with np.errstate(invalid="ignore"):
        return float(
            np.max(np.where(same, 0.0, np.abs(x - y) / np.maximum(1.0, np.abs(y))), initial=0.0)
        )


def carried_out(
    plan: Plan, seed: int, iterations: int, carry_out: Callable[[Plan], Executor] | None = None
) -> tuple[Any, Any]:
    executor = carry_out(plan) if carry_out else make_executor(plan, iterations)
    try:
        executor.start(jax.random.key(seed))
        first = executor.state()
        advance(executor, iterations)
        return first, executor.state()
    finally:
        executor.close()


def names_of(graph: Graph) -> list[str]:
    return [label.name for label in graph.labels]


def _plans(graph: Graph) -> dict[str, tuple[Place, ...]]:
    """The plans to try, of those that this graph's roles allow."""
    actors = [label.name for label in graph.labels if label.role in ("env", "act")]
    rest = [name for name in names_of(graph) if name not in actors]
    plans: dict[str, tuple[Place, ...]] = {
        "two replicas of the whole loop": (Place("all", run=names_of(graph), replicas=2),)
    }
    if len(graph.labels) > 1:
        alone = tuple(Place(name, run=(name,)) for name in names_of(graph))
        plans["each fragment alone"] = alone
    if actors and rest:
        learner = Place("learner", run=rest)
        plans["actor | learner"] = (Place("actor", run=actors), learner)
        plans["two actors | learner"] = (Place("actor", run=actors, replicas=2), learner)
    return plans
