"""The interface that every way of carrying out a plan offers to a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np

from hocket.core.plan.data import Plan
from hocket.report.outcome import Activity
from hocket.runtime.averaging.table import WayTable
from hocket.runtime.observe.timeline import Timeline


@dataclass
class Timings:
    """Seconds spent on each part of a run."""

    trace: float = 0.0
    compile: float = 0.0
    """Seconds spent on compiling and, if there are several instances, on starting them."""
    run: float = 0.0
    profile: float = 0.0
    """Seconds spent on profiling, besides running the profiled iteration."""

    def __str__(self) -> str:
        return (
            f"{self.trace:.1f} s tracing, {self.compile:.1f} s compiling, {self.run:.1f} s running"
        )


class Executor(Protocol):
    """A way of carrying out a plan: it holds the state of a run and advances it."""

    plan: Plan
    timings: Timings

    def start(self, key: jax.Array) -> None:
        """Make the first state in one compiled program. For several keys, make a state for each."""

    def load(self, state: Any, late: Mapping[str, Any] | None = None) -> None:
        """Continue from a state, and from what `late` returned when that state was saved."""

    def late(self) -> dict[str, Any]:
        """Return the arrays that a resumed run needs besides the state.

        These are messages still on their way, samples not yet learned from, and the states of host
        functions.
        """
        ...

    def late_specs(self) -> dict[str, Any]:
        """Return, by name, the shape and dtype of each array on its way in a late channel."""
        ...

    def state(self) -> Any:
        """Return the whole state, in the structure that a plan of a single program gives it."""

    def run(self, iterations: int) -> tuple[int, dict[str, Any]]:
        """Advance by at most `iterations`; return how many were run, and their stacked metrics."""
        ...

    def profile(self, limit: int) -> tuple[int, dict[str, Any], dict[str, float]]:
        """Advance as `run` does, and also return shares of the time by name, such as `wait`."""
        ...

    def activity(self) -> list[Activity]:
        """Return how busy each place was in the last block; empty for a plan of one program."""
        ...

    def reductions(self) -> Mapping[str, WayTable]:
        """Return, by place, the way chosen to average between processes, and why."""
        ...

    def timeline(self) -> Timeline | None:
        """Return what each instance did at which times, or None if that was not recorded."""

    def close(self) -> None:
        """End everything that was started. The last state can still be asked for."""


def by_seed(specs: Any, seeds: int | None) -> Any:
    """Add a leading axis of `seeds` to the shapes of one run, unless `seeds` is None."""
    axis = () if seeds is None else (seeds,)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((*axis, *x.shape), x.dtype), specs)


def advance(executor: Executor, iterations: int) -> dict[str, Any]:
    """Run exactly `iterations` iterations, and return their metrics."""
    rows: list[dict[str, Any]] = []
    done = 0
    while done < iterations:
        count, metrics = executor.run(iterations - done)
        done += count
        rows.append(metrics)
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
