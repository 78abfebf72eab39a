"""The progress of a run and its results. The run updates them; displays and loggers read them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Activity:
    """The busy and waiting time of a place, averaged over its instances, and its total traffic."""

    name: str
    replicas: int
    busy: float
    """The share of the time in which the place computes."""
    waits: Mapping[str, float] = field(default_factory=dict)
    """The share of the time in which the place waits for another place, by that place's name."""
    bytes_per_second: float = 0.0
    """The bytes per second that all instances of the place send."""


@dataclass(repr=False)
class Outcome:
    """The progress of a run, and in the end its results."""

    folder: Path
    title: str
    seeds: int
    total_steps: int
    """Environment steps of one agent in the whole run."""
    env_steps: int = 0
    """Environment steps of one agent so far."""
    return_means: list[float] = field(default_factory=list)
    """The mean return of each agent over its last 100 episodes; nan if none has ended."""
    eval_means: list[float] = field(default_factory=list)
    """The mean return of each agent in the last evaluation; empty if there was none."""
    seconds: dict[str, float] = field(default_factory=dict)
    """The seconds spent on each activity: trace, compile, run, profile, evaluate, save, other."""
    shares: dict[str, float] = field(default_factory=dict)
    """The share of `seconds["run"]` that each role takes; empty until it has been measured."""
    places: Sequence[Activity] = ()
    """The recent activity of each place; empty if the whole run is one program."""
    ages: list[int] = field(default_factory=list)
    """With `lag=free`, `ages[n]` is how many samples were n iterations old when learned from."""
    reductions: dict[str, Any] = field(default_factory=dict)
    """For each place that averages between processes, the chosen way and the cost of every way."""
    notes: list[str] = field(default_factory=list)
    """Sentences that the user should read."""
    interrupted: bool = False

    def __str__(self) -> str:
        """Return one line with the mean return, the steps, the speed and the folder."""
        stopped = ", interrupted" if self.interrupted else ""
        rate = f"{self.env_steps_per_second:,.0f} steps/s"
        return f"{self.return_text} after {self.env_steps:,} steps{stopped}, {rate}: {self.folder}"

    def __repr__(self) -> str:
        return f"<Outcome of {self.title}: {self}>"

    @property
    def return_text(self) -> str:
        """The mean return in words."""
        return return_words(self.return_mean)

    @property
    def return_mean(self) -> float:
        """The mean of `return_means` over the agents that finished an episode; nan if none did."""
        return mean_of_known(self.return_means)

    @property
    def eval_mean(self) -> float:
        """The mean of `eval_means`; nan if there was no evaluation."""
        return mean_of_known(self.eval_means)

    @property
    def env_steps_per_second(self) -> float:
        """Environment steps of all agents together per second, not counting compilation."""
        run = self.seconds.get("run", 0.0)
        return self.seeds * self.env_steps / run if run else 0.0

    @property
    def finished(self) -> bool:
        return self.env_steps >= self.total_steps


def return_words(mean: float) -> str:
    """Return a mean return in words, such as `return 478.2`."""
    return "no episode ended" if math.isnan(mean) else f"return {mean:.1f}"


def mean_of_known(values: Sequence[float]) -> float:
    """Return the mean of the values that are not nan; nan if there are none."""
    known = [x for x in values if not math.isnan(x)]
    return sum(known) / len(known) if known else math.nan
