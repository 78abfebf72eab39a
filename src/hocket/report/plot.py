"""Learning curves from the folders that runs wrote (`pip install 'hocket[plot]'`).

A folder holds `config.json`, and `metrics.jsonl` or one in each of `seed-0`, `seed-1`, ...
"""

from __future__ import annotations

import difflib
import json
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
MAX_POINTS = 1000
"""On the grid that seeds of different steps share: more than a figure shows."""
MAX_DIFFERENCES = 3
"""Settings that a label names; where runs differ in more, it names the folder."""
KEPT = {"seed", "seeds", "name", "keep", "save_every", "eval_every", "eval_episodes"} | {
    "tensorboard", "hocket",
}  # fmt: skip
"""Of a configuration, what does not make a run another experiment."""
SHORT_LABEL = 40
"""Letters of a label that has room among the curves."""
LETTERS_AN_INCH = 9
"""Of a panel's width, for the labels below it."""
BELOW, LINE_HEIGHT = 0.55, 0.22
"""Inches from the axes to those labels, and what each line of them takes."""
FEW_POINTS = 30
"""Up to this many are marked, since a line alone would hide how few they are."""

# Okabe & Ito, 2008: told apart with every kind of color blindness.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
INK = "#333740"
LEGEND: dict[str, Any] = {"fontsize": 11, "frameon": False, "labelcolor": INK}


@dataclass(frozen=True, eq=False)
class Curve:
    """One line of the figure: the mean over seeds, and their least and greatest."""

    label: str
    task: str
    """The environment: curves of one share a panel."""
    env_steps: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    num_seeds: int

    @property
    def text(self) -> str:
        """The label, with what the band is where there is one."""
        return (
            f"{self.label} ({self.num_seeds} seeds, min-max)" if self.num_seeds > 1 else self.label
        )


class Seed(NamedTuple):
    """One metric over the steps of one training."""

    env_steps: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class Run:
    """A folder: what was trained, and where each seed wrote its metrics."""

    folder: Path
    config: dict[str, Any]
    files: list[Path]

    @property
    def title(self) -> str:
        return str(self.config.get("title") or self.folder.resolve().name)

    @property
    def setting(self) -> dict[str, Any]:
        """Whatever makes it another experiment: not the seeds, nor how it was kept."""
        return {k: v for k, v in self.config.items() if k not in KEPT}

    @property
    def task(self) -> str:
        return self.title.partition(" on ")[2]


def plot(
    runs: Sequence[Path], out: Path, *, metric: str = "return_mean", title: str | None = None
) -> list[Curve]:
    """Draw `metric` over environment steps into `out` (.png, .svg or .pdf), and return the curves.

    Folders whose configs differ only in their seed are one curve, and so is a folder with several
    seeds: the mean, with a band from the least to the greatest, where all of them have values.
    Each environment has a panel of its own.

        plot([Path("runs/ppo"), Path("runs/dqn")], Path("curves.png"))
    """
    out = Path(out)
    check_figure(out)
    if not runs:
        raise ValueError("no run to plot. Give at least one folder that a run wrote.")
    # A folder that is given twice is still one seed.
    groups = _grouped([_run(folder) for folder in dict.fromkeys(map(Path, runs))])
    labels = _labels(groups)
    curves = [_curve(x, group, metric) for x, group in zip(labels, groups, strict=True)]
    figure = _figure(curves, metric, title)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out)
    return curves


def check_figure(out: Path) -> None:
    """Refuse a file that no figure can be written to, and to draw where nothing can."""
    if out.suffix.lower() not in SUFFIXES:
        raise ValueError(f"a figure cannot be written to `{out}`. Use {_any_of(SUFFIXES)}.")
    _figure_class()


def _run(folder: Path) -> Run:
    several = sorted(folder.glob("seed-*/metrics.jsonl"), key=lambda p: (len(str(p)), p))
    one = folder / "metrics.jsonl"
    files = [one] if one.is_file() else several
    if not files:
        raise ValueError(_no_metrics(folder))
    path = folder / "config.json"
    if not path.is_file():
        return Run(folder, {"folder": str(folder.resolve())}, files)
    try:
        config = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"`{path}` is not JSON: {error}. Mend it, or remove it.") from error
    if not isinstance(config, dict):
        raise ValueError(f"`{path}` holds a {type(config).__name__}, not an object. Remove it.")
    return Run(folder, config, files)


def _no_metrics(folder: Path) -> str:
    if not folder.is_dir():
        siblings = [p.name for p in folder.parent.glob("*") if p.is_dir()]
        near = difflib.get_close_matches(folder.name, siblings, n=1, cutoff=0.5)
        hint = f"Did you mean `{folder.parent / near[0]}`?" if near else "Give a run's folder."
        return f"there is no folder `{folder}`. {hint}"
    inside = sorted(str(p.parent) for p in folder.glob("*/config.json"))
    hint = f"Did you mean {_any_of(inside[:5])}?" if inside else "Give a folder that a run wrote."
    return f"`{folder}` has no metrics.jsonl, nor seed-0/metrics.jsonl. {hint}"


def _grouped(runs: list[Run]) -> list[list[Run]]:
    """Runs of one experiment together, in the order they were given."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(json.dumps(run.setting, sort_keys=True), []).append(run)
    return list(groups.values())


def _labels(groups: list[list[Run]]) -> list[str]:
    """Their titles; where several have one title, also what sets them apart."""
    firsts = [group[0] for group in groups]
    return [_label(run, [other for other in firsts if other.title == run.title]) for run in firsts]


def _label(run: Run, namesakes: list[Run]) -> str:
    mine, settings = _flat(run.setting), [_flat(other.setting) for other in namesakes]
    names = sorted({name for setting in settings for name in setting})
    differing = [n for n in names if any(setting.get(n) != mine.get(n) for setting in settings)]
    if len(differing) > MAX_DIFFERENCES:
        return f"{run.title}, {run.folder.resolve().name}"
    apart = [f"{name.removeprefix('algorithm.')}={mine.get(name)}" for name in differing]
    return ", ".join([run.title, *apart])


def _flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        flat |= _flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return flat


def _curve(label: str, group: list[Run], metric: str) -> Curve:
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
    """What one file says of `metric`, without the lines where it had no value yet."""
    lines = _lines(path)
    points: list[tuple[int, float]] = []
    for line in lines:
        # A run that was resumed repeats what came after its checkpoint: the later lines stand.
        while points and points[-1][0] > line["env_steps"]:
            points.pop()
        value = line.get(metric)
        if isinstance(value, (int, float)) and math.isfinite(value):
            if points and points[-1][0] == line["env_steps"]:
                points.pop()  # an evaluation has a line of its own, beside that of training
            points.append((line["env_steps"], value))
    if not points:
        raise ValueError(_no_values(path, metric, lines))
    steps, values = zip(*points, strict=True)
    return Seed(np.array(steps), np.array(values, float))


def _lines(path: Path) -> list[dict[str, Any]]:
    text = path.read_text(errors="replace")
    lines = []
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            # Only the last line can lack its end: a run is writing it, or was stopped there.
            if not line.endswith("\n"):
                break
            raise ValueError(
                f"line {number} of `{path}` is not JSON: {error}. Remove that line."
            ) from error
        if not isinstance(record, dict) or not isinstance(record.get("env_steps"), (int, float)):
            raise ValueError(f"line {number} of `{path}` has no number `env_steps`. Remove it.")
        lines.append(record)
    return lines


def _no_values(path: Path, metric: str, lines: list[dict[str, Any]]) -> str:
    if not lines:
        return f"`{path}` is empty so far. Wait for the run's first lines."
    if any(metric in line for line in lines):
        return f"`{metric}` has no value yet in `{path}`: no episode ended. Train for longer."
    numbers = {k for line in lines for k, v in line.items() if isinstance(v, (int, float))}
    known = sorted(numbers - {"env_steps"})
    near = difflib.get_close_matches(metric, known, n=1, cutoff=0.5)
    hint = f" Did you mean `{near[0]}`?" if near else ""
    return f"unknown metric `{metric}` in `{path}`.{hint} Known: {', '.join(known)}."


def _any_of(names: Sequence[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


def _figure(curves: list[Curve], metric: str, title: str | None) -> Figure:
    panels: dict[str, list[Curve]] = {}
    for curve in curves:
        panels.setdefault(curve.task, []).append(curve)
    columns = min(2, len(panels))
    rows = math.ceil(len(panels) / columns)
    width, height = (8.0, 5.0) if len(panels) == 1 else (6.0, 4.0)
    figure = new_figure((width * columns, height * rows))
    for number, panel in enumerate(panels.values(), 1):
        above = title if len(panels) == 1 else None
        axes = figure.add_subplot(rows, columns, number)
        _draw(axes, panel, metric, above)
        _lower(figure, axes, width)
    if title and len(panels) > 1:
        figure.suptitle(title, fontsize=17, color=INK)
    return figure


def new_figure(size: tuple[float, float]) -> Figure:
    """An empty figure."""
    return _figure_class()(figsize=size, dpi=160, layout="constrained")


def _figure_class() -> type[Figure]:
    try:
        # Not pyplot: it looks for a display, and keeps every figure it made.
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "plotting needs the package matplotlib. Run: pip install 'hocket[plot]'"
        ) from error
    return Figure


def _draw(axes: Axes, curves: list[Curve], metric: str, title: str | None) -> None:
    for index, curve in enumerate(curves):
        color = COLORS[index % len(COLORS)]
        style = ("-", "--", ":", "-.")[index // len(COLORS) % 4]
        marker = "o" if len(curve.env_steps) <= FEW_POINTS else ""
        axes.plot(
            curve.env_steps, curve.mean, style, color=color, label=curve.text, linewidth=2.2,
            marker=marker, markersize=5, solid_capstyle="round",
        )  # fmt: skip
        if curve.num_seeds > 1:
            axes.fill_between(
                curve.env_steps, curve.low, curve.high, color=color, alpha=0.18, linewidth=0
            )
    _dress(axes, metric)
    # A single curve needs no legend: what it is stands above it.
    if title is None and len(curves) == 1:
        title = curves[0].text
    elif len(curves) > 1 or curves[0].num_seeds > 1:
        axes.legend(**LEGEND)
    axes.set_title(title or "", fontsize=15, color=INK, loc="left", pad=12)


def _lower(figure: Figure, axes: Axes, width: float) -> None:
    """Put a legend that is long below the curves, in lines that fit, and make room for it."""
    from matplotlib.transforms import ScaledTranslation

    lines, labels = axes.get_legend_handles_labels()
    if axes.get_legend() is None or max(map(len, labels)) <= SHORT_LABEL:
        return
    wrapped = [textwrap.fill(label, int(LETTERS_AN_INCH * width)) for label in labels]
    below = axes.transAxes + ScaledTranslation(0.0, -BELOW, figure.dpi_scale_trans)
    axes.legend(
        lines, wrapped, loc="upper left", bbox_to_anchor=(0.0, 0.0), bbox_transform=below, **LEGEND
    )
    count = sum(label.count("\n") + 1 for label in wrapped)
    figure.set_figheight(figure.get_figheight() + LINE_HEIGHT * count)


def _dress(axes: Axes, metric: str) -> None:
    dress(axes, "environment steps", _words(metric))
    axes.margins(x=0.01)
    axes.set_xlim(left=0)


def dress(axes: Axes, x: str, y: str) -> None:
    """Large labels, numbers as 100 k and 1 M, a light grid, and no box around it all."""
    from matplotlib.ticker import EngFormatter

    axes.set_xlabel(x, fontsize=13, color=INK)
    axes.set_ylabel(y, fontsize=13, color=INK)
    axes.xaxis.set_major_formatter(EngFormatter())
    axes.tick_params(labelsize=11, labelcolor=INK, color="#b8bec8", length=3)
    axes.grid(color="#e6e9ee", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#b8bec8")


def _words(metric: str) -> str:
    """`eval_return_mean` as a person says it."""
    known = {"return_mean": "mean return", "eval_return_mean": "mean return in evaluation"}
    return known.get(metric, metric.replace("_", " "))
