"""From the folders of runs to learning curves: what is one curve, and what it shows."""

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
"""On the grid that seeds of different steps share: more than a figure shows."""
MAX_DIFFERENCES = 3
"""Settings that a label names; where runs differ in more, it names the folder."""
HOW_IT_WAS_KEPT = {"seed", "seeds", "name", "keep", "save_every", "eval_every", "eval_episodes"} | {
    "loggers", "hocket",
}  # fmt: skip
"""The settings that do not make a run another experiment."""


class Seed(NamedTuple):
    """One metric over the steps of one training."""

    env_steps: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class Trained:
    """The folder of a run: what was trained, and where each seed wrote its metrics."""

    folder: Path
    config: Mapping[str, Any]
    files: Sequence[Path]

    @property
    def title(self) -> str:
        return str(self.config.get("title") or self.folder.resolve().name)

    @property
    def setting(self) -> dict[str, Any]:
        """Whatever makes it another experiment: not the seeds, nor how it was kept."""
        return {k: v for k, v in self.config.items() if k not in HOW_IT_WAS_KEPT}

    @property
    def task(self) -> str:
        return self.title.partition(" on ")[2]


def read_curves(runs: Sequence[Path], metric: str = "return_mean") -> list[Curve]:
    """The curves of `metric` over environment steps, from the folders that runs wrote.

    Runs whose configurations differ only in the seed are one curve, and so is a run of several
    seeds: the mean, with the least and the greatest, where all of them have values.

        draw_curves(read_curves([Path("runs/ppo"), Path("runs/dqn")]), Path("curves.png"))
    """
    if not runs:
        raise ValueError("no run to plot. Give at least one: its folder, or its name in `runs`.")
    # A folder that is given twice is still one seed.
    folders = dict.fromkeys(find_run(Path(run)) for run in runs)
    groups = _grouped([Trained(f, read_config(f), metrics_files(f)) for f in folders])
    labels = _labels(groups)
    return [_curve(label, group, metric) for label, group in zip(labels, groups, strict=True)]


def _grouped(runs: list[Trained]) -> list[list[Trained]]:
    """Runs of one experiment together, in the order they were given."""
    groups: dict[str, list[Trained]] = {}
    for run in runs:
        groups.setdefault(json.dumps(run.setting, sort_keys=True), []).append(run)
    return list(groups.values())


def _labels(groups: list[list[Trained]]) -> list[str]:
    """Their titles; where several have one title, also what sets them apart."""
    firsts = [group[0] for group in groups]
    return [_label(run, [other for other in firsts if other.title == run.title]) for run in firsts]


def _label(run: Trained, namesakes: list[Trained]) -> str:
    mine, settings = flat(run.setting), [flat(other.setting) for other in namesakes]
    names = sorted({name for setting in settings for name in setting})
    differing = [n for n in names if any(setting.get(n) != mine.get(n) for setting in settings)]
    if len(differing) > MAX_DIFFERENCES:
        return f"{run.title}, {run.folder.resolve().name}"
    apart = [f"{name.removeprefix('algorithm.')}={mine.get(name)}" for name in differing]
    return ", ".join([run.title, *apart])


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
    """All the steps that any seed has, within the range that every seed has."""
    first = max(seed.env_steps[0] for seed in seeds)
    last = min(seed.env_steps[-1] for seed in seeds)
    if first > last:
        raise ValueError(
            f"the seeds of `{label}` have no steps in common: one ends at {last:,}, another begins "
            f"at {first:,}. Plot them apart, or train the short one further."
        )
    steps = np.unique(np.concatenate([seed.env_steps for seed in seeds]))
    steps = steps[(steps >= first) & (steps <= last)]
    return steps if len(steps) <= MAX_POINTS else np.linspace(first, last, MAX_POINTS)


def _seed(path: Path, metric: str) -> Seed:
    """The values of `metric` in one file, without the lines where it had none yet."""
    lines, last = list(read_rows(path)), math.inf
    points: dict[float, float] = {}
    # From the end: a run that was resumed repeats what came after its checkpoint, and what it told
    # last stands. An evaluation has a line of its own, beside that of training.
    for line in reversed(lines):
        step, value = line["env_steps"], line.get(metric)
        if step <= last:
            last = step
            if isinstance(value, (int, float)) and math.isfinite(value):
                points.setdefault(step, value)
    if not points:
        raise ValueError(_no_values(path, metric, lines))
    steps, values = zip(*reversed(points.items()), strict=True)
    return Seed(np.array(steps), np.array(values, float))


def _no_values(path: Path, metric: str, lines: list[dict[str, Any]]) -> str:
    if not lines:
        return f"`{path}` is empty so far. Wait for the run's first lines."
    if any(metric in line for line in lines):
        return f"`{metric}` has no value yet in `{path}`: no episode ended. Train for longer."
    numbers = {k for line in lines for k, v in line.items() if isinstance(v, (int, float))}
    return unknown("metric", metric, numbers - {"env_steps"}, where=f"in `{path}`")
