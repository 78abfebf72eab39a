"""The results of a search for the best slices as a figure (needs `pip install 'hocket[plot]'`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hocket.report.plot import COLORS, INK, dress, new_figure


@dataclass(frozen=True)
class Series:
    """One line of the figure: the speed for each number of environments per instance.

    A line belongs to one way to cut a device into instances.
    """

    label: str
    envs: Sequence[int]
    values: Sequence[float]
    spreads: Sequence[tuple[float, float]]


def draw_surface(lines: Sequence[Series], chosen: tuple[int, float], out: Path) -> None:
    """Draw the speed over the environments per instance, and circle the fastest point."""
    figure = new_figure((8.0, 5.0))
    from matplotlib.ticker import EngFormatter, ScalarFormatter

    axes = figure.add_subplot()
    axes.set_xscale("log", base=2)
    dress(axes, "environments per instance", "environment steps per second, all instances")
    for number, line in enumerate(lines):
        pairs = list(zip(line.values, line.spreads, strict=True))
        around = [[y - low for y, (low, _) in pairs], [high - y for y, (_, high) in pairs]]
        axes.errorbar(
            line.envs, line.values, around, label=line.label, color=COLORS[number % len(COLORS)],
            linewidth=2.2, marker="o", markersize=5, capsize=3,
        )  # fmt: skip
    axes.plot(*chosen, "o", markersize=15, fillstyle="none", color=INK)
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.set_xticks(sorted({n for line in lines for n in line.envs}))
    axes.yaxis.set_major_formatter(EngFormatter())
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=11, frameon=False, labelcolor=INK)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out)
