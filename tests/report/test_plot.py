"""Figures of learning curves: file types, room for legends, and errors."""

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hocket.report.plot import Curve, _figure, draw_curves


def curve(label: str = "ppo on Catch", seeds: int = 1) -> Curve:
    mean = np.array([1.0, 2.0])
    spread = 0.5 * (seeds > 1)
    return Curve(label, "Catch", np.array([20, 30]), mean, mean - spread, mean + spread, seeds)


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_a_figure_is_written(tmp_path: Path, suffix: str) -> None:
    out = tmp_path / "figures" / f"curve{suffix}"
    draw_curves([curve(), curve("dqn on Catch", seeds=3)], out, title="Catch")
    assert out.stat().st_size > 1000
    if suffix == ".png":
        assert np.asarray(Image.open(out).convert("L")).min() < 100


def test_a_legend_says_what_a_band_is() -> None:
    assert curve().text == "ppo on Catch"
    assert curve(seeds=3).text == "ppo on Catch (3 seeds, min-max)"


def test_a_long_label_stands_below_the_curves(tmp_path: Path) -> None:
    """The label is shown in full, and the curves keep their width."""
    options = "x" * 30
    curves = [curve(f"ppo on Catch, strategy:with={n},many={options}") for n in range(6)]
    figure = _figure(curves, "return_mean", None)
    figure.savefig(tmp_path / "b.png")  # saving computes the layout
    (axes,) = figure.axes
    legend = axes.get_legend()
    assert legend is not None
    box, drawn, label = (x.get_window_extent() for x in (legend, axes, axes.xaxis.label))
    assert box.x1 <= figure.bbox.x1 and box.y0 >= 0 and box.y1 <= label.y0
    assert drawn.width > 0.8 * figure.bbox.width and drawn.height > 0.5 * figure.bbox.height


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a\.jpg`\. Use \.png, \.svg or \.pdf\."):
        draw_curves([curve()], tmp_path / "a.jpg")


def test_without_matplotlib_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'hocket\[plot\]'"):
        draw_curves([curve()], tmp_path / "a.png")
