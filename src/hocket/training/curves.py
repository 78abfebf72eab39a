"""Compute learning curves from run folders. Runs that differ only in the seed share a curve."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hocket.errors import unknown
from hocket.report.loggers.jsonl import read_rows
from hocket.report.plot import Curve
from hocket.training.folder import find_run, flat, metrics_files, read_config

MAX_POINTS = 1000
"""The largest number of points of a curve over several seeds; a figure cannot show more."""
MAX_DIFFERENCES = 3
"""The most settings that a curve's label shows. If more differ, it shows the run's folder."""
HOW_IT_WAS_KEPT = {"seed", "seeds", "name", "keep", "save_every", "eval_every", "eval_episodes"} | {
    "loggers", "hocket",
}  # fmt: skip
"""The settings for seeds and record keeping. Runs of one experiment may differ in them."""


class Seed(NamedTuple):
    """One agent's values of a metric, and the environment steps at which it had them."""

    env_steps: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class Trained:
    """A run's folder, with its configuration and the metrics file of each seed."""

    folder: Path
    config: Mapping[str, Any]
    files: Sequence[Path]

    @property
    def title(self) -> str:
        return str(self.config.get("title") or self.folder.resolve().name)

    @property
    def setting(self) -> dict[str, Any]:
        """The settings that define the experiment: all but the seeds and the record keeping."""
        return {k: v for k, v in self.config.items() if k not in HOW_IT_WAS_KEPT}

    @property
    def task(self) -> str:
        return self.title.partition(" on ")[2]


def read_curves(runs: Sequence[Path], metric: str = "return_mean") -> list[Curve]:
    """Return the curves of `metric` over environment steps, from the folders of runs.

    Runs that differ only in the seed become one curve, and so do the seeds of one run. It has the
    mean, the minimum and the maximum over the seeds, at the steps for which all have values.

        draw_curves(read_curves([Path("runs/ppo"), Path("runs/dqn")]), Path("curves.png"))
    """
    if not runs:
        raise ValueError("no run to plot. Give at least one: its folder, or its name in `runs`.")
    # `dict.fromkeys`, because a folder that is given twice is still one seed.
    folders = dict.fromkeys(find_run(Path(run)) for run in runs)
    groups = _grouped([Trained(f, read_config(f), metrics_files(f)) for f in folders])
    labels = _labels(groups)
    return [_curve(label, group, metric) for label, group in zip(labels, groups, strict=True)]


def _grouped(runs: list[Trained]) -> list[list[Trained]]:
    """Group the runs by experiment, in the order in which they were given."""
    groups: dict[str, list[Trained]] = {}
    for run in runs:
        groups.setdefault(json.dumps(run.setting, sort_keys=True), []).append(run)
    return list(groups.values())


def _labels(groups: list[list[Trained]]) -> list[str]:
    """Return a label for each group: its title, and how it differs from others with that title."""
    firsts = [group[0] for group in groups]
    return [_label(run, [other for other in firsts if other.title == run.title]) for run in firsts]


def _label(run: Trained, namesakes: list[Trained]) -> str:
    mine, settings = flat(run.setting), [flat(other.setting) for other in namesakes]
    names = sorted({name for setting in settings for name in setting})
    differing = [n for n in names if any(setting.get(n) != mine.get(n) for setting in settings)]
    if len(differing) > MAX_DIFFERENCES:
        return f"{run.title}, {run.folder.resolve().name}"
    differences = [f"{name.removeprefix('algorithm.')}={mine.get(name)}" for name in differing]
    return ", ".join([run.title, *differences])


def _curve(label: str, group: list[Trained], metric: str) -> Curve:
    seeds = [_seed(path, metric) for run in group for path in run.files]
    if len(seeds) == 1:
        steps, values = seeds[0]
        return Curve(label, group[0].task, steps, values, values, values, 1)
    steps = _shared_steps(label, seeds)
    table = np.stack([np.interp(steps, seed.env_steps, seed.values) for seed in seeds])
    band = table.mean(0), table.min(0), table.max(0)
    return Curve(label, group[0].task, steps, *band, len(seeds))


def _shared_steps(label: str, seeds: list[Seed]) -> np.ndarray:
    """Return the steps of all seeds, within the range that all seeds have in common."""
    first = max(seed.env_steps[0] for seed in seeds)
    last = min(seed.env_steps[-1] for seed in seeds)
    if first > last:
        raise ValueError(
            f"the seeds of `{label}` have no steps in common: one ends at {last:,}, another begins "
            f"at {first:,}. Plot them separately, or continue the short one with --resume."
        )
    steps = np.unique(np.concatenate([seed.env_steps for seed in seeds]))
    steps = steps[(steps >= first) & (steps <= last)]
    return steps if len(steps) <= MAX_POINTS else np.linspace(first, last, MAX_POINTS)


def _seed(path: Path, metric: str) -> Seed:
    """Read the values of `metric` in one file, without the rows that have no value."""
    rows, first = list(read_rows(path)), math.inf
    points: dict[float, float] = {}
    # Backwards, because a resumed run may repeat rows after its checkpoint, and the later ones
    # count. An evaluation has a row of its own at the same step as a row of training.
    for row in reversed(rows):
        step, value = row["env_steps"], row.get(metric)
        if step <= first:
            first = step
            if isinstance(value, (int, float)) and math.isfinite(value):
                points.setdefault(step, value)
    if not points:
        raise ValueError(_no_values(path, metric, rows))
    steps, values = zip(*reversed(points.items()), strict=True)
    return Seed(np.array(steps), np.array(values, float))


def _no_values(path: Path, metric: str, rows: list[dict[str, Any]]) -> str:
    if not rows:
        return f"`{path}` is still empty. Wait for the run's first rows."
    if any(metric in row for row in rows):
        return f"`{metric}` has no value yet in `{path}`: no episode ended. Train for longer."
    numbers = {k for row in rows for k, v in row.items() if isinstance(v, (int, float))}
    return unknown("metric", metric, numbers - {"env_steps"}, where=f"in `{path}`")
