"""Learning curves as a figure (needs `pip install 'hocket[plot]'`)."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
SHORT_LABEL = 40
"""The longest label, in letters, for which the legend stays among the curves."""
LETTERS_AN_INCH = 9
"""How many letters of a label fit into an inch of a panel's width."""
BELOW, LINE_HEIGHT = 0.55, 0.22
"""Inches from the axes to the labels below them, and the height of each line of labels."""
FEW_POINTS = 30
"""The largest number of points for which a curve has a marker at each point."""

# Okabe & Ito, 2008: distinguishable with every kind of color blindness.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
INK = "#333740"
LEGEND: dict[str, Any] = {"fontsize": 11, "frameon": False, "labelcolor": INK}


@dataclass(frozen=True, eq=False)
class Curve:
    """One curve of the figure: the mean, minimum and maximum over seeds."""

    label: str
    task: str
    """The environment. Curves of the same environment share a panel."""
    env_steps: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    num_seeds: int

    @property
    def text(self) -> str:
        """The label, with the number of seeds if there are several."""
        seeds = self.num_seeds
        return f"{self.label} ({seeds} seeds, min-max)" if seeds > 1 else self.label


def draw_curves(
    curves: Sequence[Curve], out: Path, metric: str = "return_mean", title: str | None = None
) -> None:
    """Draw curves of `metric` over environment steps, and save the figure in `out`.

    `out` ends in .png, .svg or .pdf. Each environment has a panel; a band shows the range over
    seeds.
    """
    check_figure(out)
    figure = _figure(curves, metric, title)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out)


def check_figure(out: Path) -> None:
    """Raise if no figure can be saved in this file, or if matplotlib is missing."""
    if out.suffix.lower() not in SUFFIXES:
        raise ValueError(f"a figure cannot be saved in `{out}`. Use .png, .svg or .pdf.")
    _figure_class()


def _figure(curves: Sequence[Curve], metric: str, title: str | None) -> Figure:
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
    """Return an empty figure."""
    return _figure_class()(figsize=size, dpi=160, layout="constrained")


def _figure_class() -> type[Figure]:
    try:
        # `Figure` and not pyplot, which looks for a display and keeps every figure alive.
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
    dress(axes, "environment steps", _words(metric))
    axes.margins(x=0.01)
    axes.set_xlim(left=0)
    # A single curve needs no legend if its label is the title.
    if title is None and len(curves) == 1:
        title = curves[0].text
    elif len(curves) > 1 or curves[0].num_seeds > 1:
        axes.legend(**LEGEND)
    axes.set_title(title or "", fontsize=15, color=INK, loc="left", pad=12)


def _lower(figure: Figure, axes: Axes, width: float) -> None:
    """Move a legend with long labels below the axes, wrap its lines, and make room for them."""
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


def dress(axes: Axes, x: str, y: str) -> None:
    """Style axes: large labels, numbers such as 100 k and 1 M, a light grid, and no box."""
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
    """Return the name of a metric in words."""
    known = {"return_mean": "mean return", "eval_return_mean": "mean return in evaluation"}
    return known.get(metric, metric.replace("_", " "))
