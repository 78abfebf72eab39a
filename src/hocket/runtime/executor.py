"""What every way of carrying out a plan offers to a run."""

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
    """With several places, starting their instances, and the first iteration, which compiles."""
    run: float = 0.0
    profile: float = 0.0
    """Looking into where the time goes."""

    def __str__(self) -> str:
        return (
            f"{self.trace:.1f} s tracing, {self.compile:.1f} s compiling, {self.run:.1f} s running"
        )


class Executor(Protocol):
    """Holds the state of a run and advances it."""

    plan: Plan
    timings: Timings

    def start(self, key: jax.Array) -> None:
        """Make the first state, in one compiled program under every plan; of keys, several."""

    def load(self, state: Any, late: Mapping[str, Any] | None = None) -> None:
        """Go on from this state, and from what `late` had on its way."""

    def late(self) -> dict[str, Any]:
        """What is on its way in late channels: with the state, all of how a run stands."""
        ...

    def late_specs(self) -> dict[str, Any]:
        """The shapes and dtypes of that; nothing where no channel is late."""
        ...

    def state(self) -> Any:
        """The whole state, as the fused program has it."""

    def run(self, iterations: int) -> tuple[int, dict[str, Any]]:
        """Advance by at most so many iterations: how many it was, and their metrics, stacked."""
        ...

    def profile(self, limit: int) -> tuple[int, dict[str, Any], dict[str, float]]:
        """Advance by at most `limit` iterations, and say which part of the time each role took."""
        ...

    def activity(self) -> list[Activity]:
        """How busy each place was in the last block; nothing where one program does all."""
        ...

    def reductions(self) -> Mapping[str, WayTable]:
        """By place that averages between processes: in which way, and what each way costs."""
        ...

    def timeline(self) -> Timeline | None:
        """What was done when, if that was recorded."""

    def close(self) -> None:
        """End whatever was started; the last state can still be asked for."""


def by_seed(specs: Any, seeds: int | None) -> Any:
    """The shapes of one run's arrays, or with the axis of seeds that those of several have."""
    axis = () if seeds is None else (seeds,)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((*axis, *x.shape), x.dtype), specs)


def advance(executor: Executor, iterations: int) -> dict[str, Any]:
    """Run exactly so many iterations; the metrics of all of them."""
    rows: list[dict[str, Any]] = []
    done = 0
    while done < iterations:
        count, metrics = executor.run(iterations - done)
        done += count
        rows.append(metrics)
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
