"""What came of a run: kept up to date while it goes on, and written down as its summary."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from hocket import __version__
from hocket.cluster import hardware
from hocket.runtime.averaging.table import WayTable
from hocket.runtime.observe.timeline import Activity
from hocket.training.folder import agent_folders, write_json


@dataclass
class Outcome:
    """How a run stands, and in the end what came of it."""

    folder: Path
    title: str
    seeds: int
    total_steps: int
    """Environment steps of one agent in all."""
    env_steps: int = 0
    """Those so far."""
    return_means: list[float] = field(default_factory=list)
    """Of each agent, over its last 100 episodes; nan where none ended."""
    eval_means: list[float] = field(default_factory=list)
    """Of each agent, in the last evaluation; empty where there was none."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Where the time went: trace, compile, run, profile, evaluate, save, other."""
    shares: dict[str, float] = field(default_factory=dict)
    """The part of `run` that each role took."""
    places: list[Activity] = field(default_factory=list)
    """How each place spent its time lately; empty where all of the run is one program."""
    ages: list[int] = field(default_factory=list)
    """With a free channel, how many samples were how many iterations old when learned from."""
    reductions: dict[str, Any] = field(default_factory=dict)
    """By place that averages between processes: in which way, and what each way costs."""
    notes: list[str] = field(default_factory=list)
    """What the user should know."""
    interrupted: bool = False

    def note_reductions(self, found: Mapping[str, WayTable]) -> None:
        """Keep how places average, and say which way was measured to be the fastest."""
        if self.reductions:
            return
        self.reductions = {place: asdict(table) for place, table in found.items()}
        measured = [(place, table) for place, table in found.items() if table.was_measured]
        self.notes += [f"{place}: {table.sentence}" for place, table in measured]

    @property
    def return_mean(self) -> float:
        """The mean over those agents that finished an episode; nan where none did."""
        return _mean(self.return_means)

    @property
    def eval_mean(self) -> float:
        """The mean over agents in the last evaluation; nan where there was none."""
        return _mean(self.eval_means)

    @property
    def env_steps_per_second(self) -> float:
        """Of all agents together, compilation not counted."""
        run = self.seconds.get("run", 0.0)
        return self.seeds * self.env_steps / run if run else 0.0

    @property
    def finished(self) -> bool:
        return self.env_steps >= self.total_steps


def write_summary(outcome: Outcome, seed: int) -> dict[str, Any]:
    """Write what came of the run into `summary.json`, and for several seeds one for each as well.

    Returns that of the whole run.
    """
    seconds = outcome.seconds
    about = {
        "title": outcome.title,
        "env_steps": outcome.env_steps,
        "finished": outcome.finished,
        "env_steps_per_second": round(outcome.env_steps_per_second),
        "trace_seconds": round(seconds.get("trace", 0.0), 3),
        "compile_seconds": round(seconds.get("compile", 0.0), 3),
        "run_seconds": round(seconds.get("run", 0.0), 3),
        "wall_seconds": round(sum(seconds.values()), 3),
        "time_in": {role: round(share, 4) for role, share in outcome.shares.items()},
        **({"sample_ages": outcome.ages} if outcome.ages else {}),
        **({"reductions": outcome.reductions} if outcome.reductions else {}),
        "versions": versions(),
        "hardware": hardware(),
    }
    folders = agent_folders(outcome.folder, seed, outcome.seeds)
    each = [{**_results(outcome, [i]), "seed": s} for i, s in enumerate(folders)]
    for folder, mine in zip(folders.values(), each, strict=True):
        write_json(folder / "summary.json", {**mine, **about})
    if outcome.seeds == 1:
        return {**each[0], **about}
    whole = {**_results(outcome, range(outcome.seeds)), "each": each, **about}
    write_json(outcome.folder / "summary.json", whole)
    return whole


def _results(outcome: Outcome, agents: Sequence[int]) -> dict[str, float | None]:
    """The mean returns over some agents."""

    def mean(values: list[float]) -> float | None:
        found = _mean([values[i] for i in agents] if values else [])
        return found if math.isfinite(found) else None

    results = {"return_mean": mean(outcome.return_means)}
    return results | ({"eval_return_mean": mean(outcome.eval_means)} if outcome.eval_means else {})


def versions() -> dict[str, str]:
    """What computed: Python and the packages that matter to the numbers."""
    found = {"python": platform.python_version(), "hocket": __version__}
    for package in ("jax", "jaxlib", "flax", "optax", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _mean(values: Sequence[float]) -> float:
    known = [x for x in values if not math.isnan(x)]
    return sum(known) / len(known) if known else math.nan
