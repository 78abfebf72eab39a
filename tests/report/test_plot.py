"""Learning curves: what is one curve, what it shows, and what is said of folders that have none."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hocket.report.plot import _figure, plot

PPO = {"title": "ppo on Catch", "algorithm": {"rate": 0.1}}


def write(path: Path, values: dict[int, float | None], **others: float) -> None:
    """A metrics file with `return_mean` at some steps."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [{"env_steps": x, "return_mean": y, **others} for x, y in values.items()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def run(folder: Path, values: dict[int, float | None], **config: Any) -> Path:
    write(folder / "metrics.jsonl", values, loss=1.0)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_a_figure_is_written(tmp_path: Path, suffix: str) -> None:
    out = tmp_path / "figures" / f"curve{suffix}"
    (curve,) = plot([run(tmp_path / "a", {10: None, 20: 1.0, 30: 2.0}, **PPO)], out)
    assert out.stat().st_size > 1000
    assert curve.text == "ppo on Catch" and curve.num_seeds == 1
    np.testing.assert_array_equal(curve.env_steps, [20, 30])
    np.testing.assert_array_equal(curve.mean, [1, 2])
    if suffix == ".png":
        assert np.asarray(Image.open(out).convert("L")).min() < 100


def test_seeds_in_one_folder_are_one_curve(tmp_path: Path) -> None:
    for seed in range(3):
        write(tmp_path / f"seed-{seed}" / "metrics.jsonl", {0: 0.0, 10: 10.0 * seed})
    (curve,) = plot([tmp_path], tmp_path / "a.png")
    assert curve.text == f"{tmp_path.name} (3 seeds, min-max)"
    np.testing.assert_array_equal(curve.mean, [0, 10])
    np.testing.assert_array_equal(curve.low, [0, 0])
    np.testing.assert_array_equal(curve.high, [0, 20])


def test_folders_that_differ_in_the_seed_are_one_curve(tmp_path: Path) -> None:
    runs = [
        run(tmp_path / "a", {0: 0.0, 20: 20.0, 30: 0.0}, **PPO, seed=0, name="first"),
        run(tmp_path / "b", {10: 1.0, 20: 3.0, 40: 0.0}, **PPO, seed=1, name="second"),
        run(tmp_path / "c", {0: 5.0, 10: 5.0}, title="dqn on Catch", seed=0),
    ]
    ppo, dqn = plot(runs, tmp_path / "a.png", title="Catch")
    assert ppo.text == "ppo on Catch (2 seeds, min-max)" and dqn.text == "dqn on Catch"
    # Only from 10 to 30 have both of them values; between their steps they are interpolated.
    np.testing.assert_array_equal(ppo.env_steps, [10, 20, 30])
    np.testing.assert_allclose(ppo.mean, [(10 + 1) / 2, (20 + 3) / 2, (0 + 1.5) / 2])


def test_one_title_with_other_settings_says_which(tmp_path: Path) -> None:
    runs = [
        run(tmp_path / str(rate), {0: 1.0}, title="ppo on Catch", algorithm={"rate": rate, "n": 1})
        for rate in (0.1, 0.2)
    ]
    labels = [curve.label for curve in plot(runs, tmp_path / "a.png")]
    assert labels == ["ppo on Catch, rate=0.1", "ppo on Catch, rate=0.2"]


def test_one_title_with_many_other_settings_names_the_folders(tmp_path: Path) -> None:
    runs = [
        run(tmp_path / name, {0: 1.0}, title="ppo on Catch", **dict.fromkeys("abcd", name))
        for name in ("first", "second")
    ]
    labels = [curve.label for curve in plot(runs, tmp_path / "a.png")]
    assert labels == ["ppo on Catch, first", "ppo on Catch, second"]


def test_a_long_label_stands_below_the_curves(tmp_path: Path) -> None:
    """Whole, and the curves keep their width."""
    settings = [f"strategy:with={n},many_options={'x' * 30}" for n in range(6)]
    runs = [
        run(tmp_path / str(n), {0: 0.0, 10: 1.0}, title="ppo on Catch", distribute=words)
        for n, words in enumerate(settings)
    ]
    figure = _figure(plot(runs, tmp_path / "a.png"), "return_mean", None)
    figure.savefig(tmp_path / "b.png")  # which lays it out
    (axes,) = figure.axes
    legend = axes.get_legend()
    assert legend is not None
    box, curves, label = (x.get_window_extent() for x in (legend, axes, axes.xaxis.label))
    assert box.x1 <= figure.bbox.x1 and box.y0 >= 0 and box.y1 <= label.y0
    assert curves.width > 0.8 * figure.bbox.width and curves.height > 0.5 * figure.bbox.height


def test_a_folder_that_is_given_twice_is_one_seed(tmp_path: Path) -> None:
    folder = run(tmp_path / "a", {0: 1.0}, **PPO)
    (curve,) = plot([folder, folder], tmp_path / "a.png")
    assert curve.num_seeds == 1


def test_many_points_share_a_grid(tmp_path: Path) -> None:
    for seed in range(2):
        steps = range(seed, 3000, 2)
        write(tmp_path / f"seed-{seed}" / "metrics.jsonl", {x: float(x) for x in steps})
    (curve,) = plot([tmp_path], tmp_path / "a.png")
    assert len(curve.env_steps) == 1000
    np.testing.assert_allclose(curve.mean, curve.env_steps)


def test_a_half_line_at_the_end_is_ignored(tmp_path: Path) -> None:
    folder = run(tmp_path / "a", {0: 1.0, 10: 2.0}, **PPO)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"env_steps": 20, "retu')
    (curve,) = plot([folder], tmp_path / "a.png")
    np.testing.assert_array_equal(curve.env_steps, [0, 10])


def test_of_a_resumed_run_the_later_lines_stand(tmp_path: Path) -> None:
    folder = run(tmp_path / "a", {0: 1.0, 10: 2.0, 20: 3.0}, **PPO)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"env_steps": 8, "return_mean": 7.0}\n{"env_steps": 16, "return_mean": 8.0}\n')
    (curve,) = plot([folder], tmp_path / "a.png")
    np.testing.assert_array_equal(curve.env_steps, [0, 8, 16])
    np.testing.assert_array_equal(curve.mean, [1, 7, 8])


@pytest.mark.parametrize("line", ["{broken", '{"return_mean": 1.0}', "[1]"])
def test_other_broken_lines_are_named(tmp_path: Path, line: str) -> None:
    folder = run(tmp_path / "a", {0: 1.0, 10: 2.0}, **PPO)
    file = folder / "metrics.jsonl"
    file.write_text(file.read_text() + f"{line}\n" + file.read_text())
    with pytest.raises(ValueError, match=r"line 3 of `.*metrics\.jsonl`"):
        plot([folder], tmp_path / "a.png")


def test_an_unknown_metric_gets_a_suggestion(tmp_path: Path) -> None:
    folder = run(tmp_path / "a", {0: 1.0}, **PPO)
    with pytest.raises(ValueError, match=r"`los`.*mean `loss`\? Known: loss, return_mean\."):
        plot([folder], tmp_path / "a.png", metric="los")


def test_a_metric_without_values_yet(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`return_mean` has no value yet"):
        plot([run(tmp_path / "a", {0: None, 5: float("nan")})], tmp_path / "a.png")
    with pytest.raises(ValueError, match="is empty so far"):
        plot([run(tmp_path / "b", {})], tmp_path / "a.png")


def test_folders_that_no_run_wrote(tmp_path: Path) -> None:
    run(tmp_path / "runs" / "ppo-catch", {0: 1.0}, **PPO)
    with pytest.raises(ValueError, match=r"no metrics\.jsonl.* mean .*runs/ppo-catch\?"):
        plot([tmp_path / "runs"], tmp_path / "a.png")
    with pytest.raises(ValueError, match=r"no folder.* mean `.*runs/ppo-catch`\?"):
        plot([tmp_path / "runs" / "ppo-cath"], tmp_path / "a.png")
    with pytest.raises(ValueError, match="at least one folder"):
        plot([], tmp_path / "a.png")


def test_seeds_without_common_steps(tmp_path: Path) -> None:
    runs = [run(tmp_path / "a", {0: 1.0}, seed=0), run(tmp_path / "b", {9: 1.0}, seed=1)]
    with pytest.raises(ValueError, match="no steps in common: one ends at 0, another begins at 9"):
        plot(runs, tmp_path / "a.png")


def test_a_config_that_is_no_object(tmp_path: Path) -> None:
    folder = run(tmp_path / "a", {0: 1.0})
    for text, message in [("[1]", "holds a list"), ("{", "is not JSON")]:
        (folder / "config.json").write_text(text)
        with pytest.raises(ValueError, match=message):
            plot([folder], tmp_path / "a.png")


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a\.jpg`\. Use \.png, \.svg or \.pdf\."):
        plot([run(tmp_path / "a", {0: 1.0})], tmp_path / "a.jpg")


def test_without_matplotlib_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'hocket\[plot\]'"):
        plot([run(tmp_path / "a", {0: 1.0})], tmp_path / "a.png")
