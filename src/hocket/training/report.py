"""The return values of runs: a report after each block, a result at the end."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from hocket.core.plan.data import Plan
from hocket.core.program.algorithm import Algorithm, Policy
from hocket.report.outcome import Activity, return_words
from hocket.runtime.executor import Executor, Timings
from hocket.runtime.observe.timeline import Timeline


@dataclass(frozen=True)
class Report:
    """The progress of a run after a block of iterations, with the metrics of that block."""

    iteration: int
    """The number of iterations so far."""
    env_steps: int
    """The number of environment steps so far."""
    metrics: dict[str, np.ndarray] = field(repr=False)
    """The metrics of the block, `[iterations, ...]`."""
    timings: Timings
    """The seconds spent so far on tracing, on compiling, on running and on profiling."""
    shares: dict[str, float]
    """The share of the running time that each role takes; empty until it has been measured."""
    executor: Executor = field(repr=False)
    places: tuple[Activity, ...] = ()
    """How busy each place was, and which places it waited for; empty if there is one program."""

    @property
    def state(self) -> Any:
        """The whole state at present. Read it before the next block, which replaces it."""
        return self.executor.state()

    @property
    def return_mean(self) -> float:
        """The mean return of the episodes that ended in this block; nan if none ended."""
        return mean_of_episodes(self.metrics, "episode_return")


@dataclass(frozen=True, repr=False)
class Result:
    """A finished run."""

    algorithm: Algorithm
    plan: Plan
    state: Any
    """The whole final state, with the structure that the fused program gives it."""
    metrics: dict[str, np.ndarray]
    """Every metric over all iterations, `[iterations, ...]`."""
    env_steps: int
    timings: Timings
    seeds: int | None = None
    """The number of agents that were trained at once. They are the first axis of `state` and the
    second axis of `metrics`. Without `seeds` this is None, and there are no such axes."""
    timeline: Timeline | None = None
    """The times at which each instance computed, sent, received and waited; None without
    `record=True`. They begin with the second iteration, since the first one compiles."""

    def __repr__(self) -> str:
        """Return the mean return and the number of steps, without the arrays."""
        agents = f" by each of {self.seeds} agents" if self.seeds is not None else ""
        iterations = len(next(iter(self.metrics.values()), ()))
        return (
            f"<Result of {type(self.algorithm).__name__}: {return_words(self.return_mean)} after "
            f"{self.env_steps:,} steps{agents} in {iterations:,} iterations; {self.timings}>"
        )

    def agent(self, index: int) -> Result:
        """Return the result of one agent, if several seeds were trained."""
        if self.seeds is None or not 0 <= index < self.seeds:
            trained = (
                "1 agent, this result" if self.seeds is None else f"agents 0 to {self.seeds - 1}"
            )
            raise ValueError(f"there is no agent {index}: this run trained {trained}.")
        state = jax.tree.map(lambda x: x[index], self.state)
        metrics = {name: rows[:, index] for name, rows in self.metrics.items()}
        return replace(self, state=state, metrics=metrics, seeds=None)

    @property
    def policy(self) -> Policy:
        """The policy that was learned."""
        if self.seeds is not None:
            raise ValueError(
                f"{self.seeds} agents were trained, each with its policy: use "
                f"`result.agent(0).policy` for the first."
            )
        return self.algorithm.policy(self.state)

    @property
    def return_mean(self) -> float:
        """The mean return of the last 100 episodes, rounded up to whole iterations.

        It is nan if no episode ended, or if `{**rollout.episodes}` is not among the metrics.
        """
        if "episode_count" not in self.metrics:
            return math.nan
        ended = self.metrics["episode_count"].reshape(len(self.metrics["episode_count"]), -1).sum(1)
        enough = np.cumsum(ended[::-1]) >= 100
        last = int(enough.argmax()) + 1 if enough.any() else len(ended)
        return mean_of_episodes({k: v[-last:] for k, v in self.metrics.items()}, "episode_return")


def mean_of_episodes(metrics: dict[str, np.ndarray], name: str) -> float:
    """Divide a sum over episodes by their count; nan if it is zero or not among the metrics."""
    if "episode_count" not in metrics or not metrics["episode_count"].sum():
        return math.nan
    return float(metrics[name].sum() / metrics["episode_count"].sum())
