"""How a run stands, and in the end what came of it: kept up to date by the run, read by others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Activity:
    """How a place spends its time: the mean of its instances, and the bytes of all of them."""

    name: str
    replicas: int
    busy: float
    """The share of the time in which it computes."""
    waits: Mapping[str, float] = field(default_factory=dict)
    """For whom it waits, and for what share of the time."""
    bytes_per_second: float = 0.0
    """The bytes that it sends."""


@dataclass(repr=False)
class Outcome:
    """How a run stands, and in the end what came of it."""

    folder: Path
    title: str
    seeds: int
    total_steps: int
    """Environment steps of one agent in all."""
    env_steps: int = 0
    """Environment steps of one agent so far."""
    return_means: list[float] = field(default_factory=list)
    """The mean return of each agent over its last 100 episodes; nan where none ended."""
    eval_means: list[float] = field(default_factory=list)
    """The mean return of each agent in the last evaluation; empty where there was none."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Where the time went: trace, compile, run, profile, evaluate, save, other."""
    shares: dict[str, float] = field(default_factory=dict)
    """The part of `run` that each role took."""
    places: Sequence[Activity] = ()
    """How each place spent its time lately; empty where all of the run is one program."""
    ages: list[int] = field(default_factory=list)
    """With a free channel, how many samples were how many iterations old when learned from."""
    reductions: dict[str, Any] = field(default_factory=dict)
    """By place that averages between processes: in which way, and what each way costs."""
    notes: list[str] = field(default_factory=list)
    """Sentences that the user should read."""
    interrupted: bool = False

    def __str__(self) -> str:
        """One line: how well, how far, how fast, and where it is."""
        stopped = ", interrupted" if self.interrupted else ""
        rate = f"{self.env_steps_per_second:,.0f} steps/s"
        return f"{self.return_text} after {self.env_steps:,} steps{stopped}, {rate}: {self.folder}"

    def __repr__(self) -> str:
        return f"<Outcome of {self.title}: {self}>"

    @property
    def return_text(self) -> str:
        """How well it is, in words."""
        mean = self.return_mean
        return "no episode ended" if math.isnan(mean) else f"return {mean:.1f}"

    @property
    def return_mean(self) -> float:
        """The mean over those agents that finished an episode; nan where none did."""
        return mean_of_known(self.return_means)

    @property
    def eval_mean(self) -> float:
        """The mean over agents in the last evaluation; nan where there was none."""
        return mean_of_known(self.eval_means)

    @property
    def env_steps_per_second(self) -> float:
        """The rate of all agents together, compilation not counted."""
        run = self.seconds.get("run", 0.0)
        return self.seeds * self.env_steps / run if run else 0.0

    @property
    def finished(self) -> bool:
        return self.env_steps >= self.total_steps


def mean_of_known(values: Sequence[float]) -> float:
    """The mean of those that are no nan; nan where there are none."""
    known = [x for x in values if not math.isnan(x)]
    return sum(known) / len(known) if known else math.nan
