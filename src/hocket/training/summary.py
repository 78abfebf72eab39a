"""The summary of a run: its results, where the time went, the hardware and the versions."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from hocket import __version__
from hocket.cluster import hardware
from hocket.report.outcome import Outcome, mean_of_known
from hocket.runtime.averaging.table import WayTable
from hocket.training.folder import SUMMARY, agent_folders, write_json


def note_reductions(outcome: Outcome, tables: Mapping[str, WayTable]) -> None:
    """Record how each place averages over its replicas, with a note if measurements decided it."""
    if not outcome.reductions:
        outcome.reductions = {place: asdict(table) for place, table in tables.items()}
        measured = [(place, table) for place, table in tables.items() if table.was_measured]
        outcome.notes += [f"{place}: {table.sentence}" for place, table in measured]


def write_summary(outcome: Outcome, seed: int) -> dict[str, Any]:
    """Write the `summary.json` of a run, and return its content.

    If there are several seeds, also write a `summary.json` for each.
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
        "versions": package_versions(),
        "hardware": hardware(),
    }
    folders = agent_folders(outcome.folder, seed, outcome.seeds)
    each = [{**_results(outcome, [i]), "seed": s} for i, s in enumerate(folders)]
    for folder, mine in zip(folders.values(), each, strict=True):
        write_json(folder / SUMMARY, {**mine, **about})
    if outcome.seeds == 1:
        return {**each[0], **about}
    whole = {**_results(outcome, range(outcome.seeds)), "each": each, **about}
    write_json(outcome.folder / SUMMARY, whole)
    return whole


def _results(outcome: Outcome, agents: Sequence[int]) -> dict[str, float | None]:
    """Return the mean returns of some agents; None if no episode ended."""

    def mean(values: list[float]) -> float | None:
        average = mean_of_known([values[i] for i in agents] if values else [])
        return average if math.isfinite(average) else None

    results = {"return_mean": mean(outcome.return_means)}
    return results | ({"eval_return_mean": mean(outcome.eval_means)} if outcome.eval_means else {})


def package_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that the numbers depend on."""
    versions = {"python": platform.python_version(), "hocket": __version__}
    for package in ("jax", "jaxlib", "flax", "optax", "numpy"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
