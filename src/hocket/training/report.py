"""Everything that a run tells its caller: a report after each block, a result at the end."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from hocket.core.plan.data import Plan
from hocket.core.program.algorithm import Algorithm, Policy
from hocket.report.outcome import Activity
from hocket.runtime.executor import Executor, Timings
from hocket.runtime.observe.timeline import Timeline


@dataclass(frozen=True)
class Report:
    """The metrics `[iterations, ...]` of some iterations, and where the run stands after them."""

    iteration: int
    """Iterations so far."""
    env_steps: int
    """Environment steps so far."""
    metrics: dict[str, np.ndarray] = field(repr=False)
    timings: Timings
    """Seconds so far."""
    shares: dict[str, float]
    """The part of the running time that each role took; empty until it was measured."""
    executor: Executor = field(repr=False)
    places: tuple[Activity, ...] = ()
    """How busy each place was, and for whom it waited; nothing where one program does all."""

    @property
    def state(self) -> Any:
        """The whole state as it is now; ask before going on with the loop."""
        return self.executor.state()

    @property
    def return_mean(self) -> float:
        """Mean return of the episodes that ended in these iterations; nan where none did."""
        return mean_of_episodes(self.metrics, "episode_return")


@dataclass(frozen=True, repr=False)
class Result:
    """A finished run."""

    algorithm: Algorithm
    plan: Plan
    state: Any
    """The whole final state, as the fused program has it."""
    metrics: dict[str, np.ndarray]
    """Every metric over all iterations, `[iterations, ...]`."""
    env_steps: int
    timings: Timings
    seeds: int | None = None
    """How many agents were trained at once; state and metrics then have an axis of seeds."""
    timeline: Timeline | None = None
    """With `record=True`, what each instance did when: computed, sent, received, waited. From the
    second iteration on, since the first one compiles."""

    def __repr__(self) -> str:
        """How well and how far; the arrays are in `state` and `metrics`."""
        mean = self.return_mean
        returned = "no episode ended" if math.isnan(mean) else f"return {mean:.1f}"
        agents = f" by each of {self.seeds} agents" if self.seeds is not None else ""
        iterations = len(next(iter(self.metrics.values()), ()))
        return (
            f"<Result of {type(self.algorithm).__name__}: {returned} after {self.env_steps:,} steps"
            f"{agents} in {iterations:,} iterations; {self.timings}>"
        )

    def agent(self, index: int) -> Result:
        """The run of one of several seeds."""
        if self.seeds is None or not 0 <= index < self.seeds:
            raise ValueError(f"there is no agent {index} among {self.seeds or 'a run of one'}.")
        state = jax.tree.map(lambda x: x[index], self.state)
        metrics = {name: rows[:, index] for name, rows in self.metrics.items()}
        return replace(self, state=state, metrics=metrics, seeds=None)

    @property
    def policy(self) -> Policy:
        """The policy that was learned."""
        if self.seeds is not None:
            raise ValueError(f"{self.seeds} agents were trained: use `result.agent(0).policy`.")
        return self.algorithm.policy(self.state)

    @property
    def return_mean(self) -> float:
        """Mean return of the last 100 episodes, or a few more: of whole iterations.

        nan where the algorithm does not report `{**rollout.episodes}` among its metrics.
        """
        if "episode_count" not in self.metrics:
            return math.nan
        ended = self.metrics["episode_count"].reshape(len(self.metrics["episode_count"]), -1).sum(1)
        enough = np.cumsum(ended[::-1]) >= 100
        last = int(enough.argmax()) + 1 if enough.any() else len(ended)
        return mean_of_episodes({k: v[-last:] for k, v in self.metrics.items()}, "episode_return")


def mean_of_episodes(metrics: dict[str, np.ndarray], name: str) -> float:
    """The mean of a sum over episodes; nan where no episode ended, or the algorithm counts none."""
    if "episode_count" not in metrics or not metrics["episode_count"].sum():
        return math.nan
    return float(metrics[name].sum() / metrics["episode_count"].sum())
