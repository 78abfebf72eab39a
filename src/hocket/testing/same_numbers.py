"""Conformance kits for algorithms (their contract) and strategies (the law of same numbers)."""

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
from hocket.runtime.launch import cluster_named, launch_named
from hocket.runtime.refusals import refuse
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
"""The built-in algorithms at sizes that compile in seconds."""

LAUNCHES = ("threads", "processes")
"""The launchers with which `check_strategy` runs a strategy, unless it is told others."""


@dataclass
class Check:
    """The results of `check_algorithm`. Printing them shows a line for each plan."""

    graph: Graph
    differences: dict[str, float] = field(default_factory=dict)
    """For each plan that ran, the largest difference of its state from the fused program's."""
    refused: dict[str, str] = field(default_factory=dict)
    """For each plan that cannot give the fused program's numbers, the reason. A refusal is no fault
    if a part of the algorithm, such as a replay, cannot be replicated."""
    unchanged: tuple[str, ...] = ()
    """Floating-point leaves of the state that never changed. So the code that computes them was not
    tested. If the algorithm has a warm-up, use sizes at which the warm-up ends in time."""

    def __str__(self) -> str:
        names = ", ".join(self.unchanged)
        unchanged = [f"  never changed (a warm-up?): {names}"] if names else []
        lines = _lines(self.differences, self.refused, "plans")
        return "\n".join([str(self.graph), *unchanged, *lines])


def check_algorithm(
    algorithm: Algorithm,
    *,
    num_envs: int = 8,
    iterations: int = 3,
    tolerance: float = 1e-4,
    seed: int = 0,
) -> Check:
    """Verify an algorithm's contract in seconds: trace it, run it in several plans, and compare.

        print(check_algorithm(SAC(env=make("Pendulum-v1"))))

    The plans: one fused program; an actor and a learner; two actors and a learner; every fragment
    on its own place; and two replicas of the whole loop. A plan that cannot give the fused
    program's numbers is refused, and the result says why. Raise if a plan that runs gives other
    numbers.
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
            f"{iterations} iterations of {type(algorithm).__name__} changed nothing: return the "
            f"new state from `step`, or use more `iterations`."
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
        check.differences[name] = compared(
            f"{type(algorithm).__name__}, {name}", carried_out(plan, seed, iterations)[1], expected,
            tolerance, ContractError,
            f"Is every function pure, with the same result for the same arguments?\n{plan}",
        )  # fmt: skip
    return check


@dataclass
class StrategyCheck:
    """The results of `check_strategy`. Printing them shows a line for each run or refusal."""

    differences: dict[str, float] = field(default_factory=dict)
    """For each algorithm and launcher, the largest difference from the fused program's state."""
    moved: dict[str, float] = field(default_factory=dict)
    """For each algorithm, how far the fused program moved the state. If this is 0, the comparison
    shows nothing."""
    refused: dict[str, str] = field(default_factory=dict)
    """For each algorithm that the strategy cannot place, the reason."""

    def __str__(self) -> str:
        return "\n".join(_lines(self.differences, self.refused, "runs"))


def check_strategy(
    strategy: str | Strategy,
    algorithms: Mapping[str, Algorithm] | None = None,
    *,
    launch: Sequence[str] | None = None,
    cluster: str | Cluster | None = None,
    num_envs: int = 8,
    iterations: int = 3,
    tolerance: float = 1e-5,
    exact: bool = False,
    seed: int = 0,
) -> StrategyCheck:
    """Verify that a strategy keeps the law of same numbers, for built-in algorithms or yours.

        print(check_strategy("actor_learner:actors=4"))
        print(check_strategy(mine(), {"sac": SAC(env=make("Pendulum-v1"))}))
        print(check_strategy("actor_learner:actors=4", cluster="loopback:2"))

    Every algorithm runs as one program, and under the strategy with each launcher, by default as
    threads and as processes. With `cluster` it runs on the nodes of the cluster. An algorithm
    that the strategy cannot place is refused, and the result says why. Raise if the numbers
    differ by more than `tolerance`. Use few iterations, because training makes rounding errors
    grow. With `exact` there are none, if the strategy changes no batch size.
    """
    check = StrategyCheck()
    if cluster is not None and launch is not None:
        raise ValueError(f"`{cluster}` has a launcher of its own: leave `launch` out.")
    nodes = cluster_named(cluster) if isinstance(cluster, str) else cluster
    for name, algorithm in (algorithms or {k: small() for k, small in SMALL.items()}).items():
        graph = trace(algorithm, num_envs, exact=exact)
        try:
            plan = resolve(strategy)(graph, nodes or Cluster.local())
            if nodes:
                refuse(plan, nodes)
        except PlanError as error:
            check.refused[name] = str(error)
            continue
        late = [f"`{name}` has lag={x.lag}" for name, x in plan.channels.items() if x.lag]
        late += [f"`{plan.free.learner}` waits for nobody"] if plan.free else []
        if late:
            raise ValueError(
                f"{late[0]}, so this strategy does not compute the numbers of the fused program. "
                f"To check it, set lag=0."
            )
        first, expected = carried_out(
            Plan(graph, (Place("all", run=names_of(graph)),)), seed, iterations
        )
        check.moved[name] = difference(first, expected)
        for launched in [plan] if nodes else _launched(plan, launch or LAUNCHES):
            launcher = launched.launch.name
            title, last = f"{name}, {launcher}", carried_out(launched, seed, iterations)[1]
            check.differences[title] = compared(
                title, last, expected, tolerance, PlanError, f"The plan:\n{plan}"
            )
    if not check.differences:
        why = "\n".join(f"{name}: {reason}" for name, reason in check.refused.items())
        raise PlanError(f"the strategy can place none of these algorithms:\n{why}")
    return check


def _launched(plan: Plan, launch: Sequence[str]) -> list[Plan]:
    return [replace(plan, launch=launch_named(launcher)) for launcher in launch]


def _lines(differences: dict[str, float], refused: dict[str, str], what: str) -> list[str]:
    ran = [f"  {name}: max difference {value:.2g}" for name, value in differences.items()]
    not_run = [f"  {name}: refused: {why}" for name, why in refused.items()]
    end = f"ok: {len(ran)} {what} agree with the fused program, {len(not_run)} refused"
    return [*ran, *not_run, end]


def compared(
    title: str, state: Any, fused: Any, tolerance: float, error: type[ValueError], hint: str
) -> float:
    """Return how far a state is from the fused program's; raise `error` if it is too far."""
    apart = difference(state, fused)
    if not apart <= tolerance:  # a nan fails too
        raise error(
            f"{title}: the numbers differ from the fused program's by {apart:.2g} "
            f"(allowed: {tolerance:.2g}). {hint}"
        )
    return apart


def difference(a: Any, b: Any) -> float:
    """Return the largest difference between two states, relative for values above one."""
    leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max((_leaf_difference(x, y) for x, y in leaves), default=0.0)


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
    """Run a plan, and return its first and its last state."""
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
    """Return the plans to try, leaving out those that need fragments which this graph lacks."""
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
