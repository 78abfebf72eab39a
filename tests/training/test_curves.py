"""Learning curves: which runs share a curve, and errors about folders without one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket.training.curves import read_curves

PPO = {"title": "ppo on Catch", "algorithm": {"rate": 0.1}}
ONE: dict[str, Any] = {"algorithm": {}, "seed": 0, "seeds": 1}


def write(path: Path, values: dict[int, float | None], **others: float) -> None:
    """Write a metrics file with `return_mean` at some steps."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [{"env_steps": x, "return_mean": y, **others} for x, y in values.items()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def configured(folder: Path, **config: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(ONE | config))
    return folder


def run(folder: Path, values: dict[int, float | None], **config: Any) -> Path:
    write(folder / "metrics.jsonl", values, loss=1.0)
    return configured(folder, **config)


def test_seeds_in_one_folder_are_one_curve(tmp_path: Path) -> None:
    for seed in range(3):
        write(tmp_path / f"seed-{seed}" / "metrics.jsonl", {0: 0.0, 10: 10.0 * seed})
    (curve,) = read_curves([configured(tmp_path, seeds=3)])
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
    ppo, dqn = read_curves(runs)
    assert ppo.text == "ppo on Catch (2 seeds, min-max)" and dqn.text == "dqn on Catch"
    # Only from 10 to 30 have both of them values; between their steps they are interpolated.
    np.testing.assert_array_equal(ppo.env_steps, [10, 20, 30])
    np.testing.assert_allclose(ppo.mean, [(10 + 1) / 2, (20 + 3) / 2, (0 + 1.5) / 2])


def test_one_title_with_other_settings_says_which(tmp_path: Path) -> None:
    runs = [
        run(tmp_path / str(rate), {0: 1.0}, title="ppo on Catch", algorithm={"rate": rate, "n": 1})
        for rate in (0.1, 0.2)
    ]
    labels = [curve.label for curve in read_curves(runs)]
    assert labels == ["ppo on Catch, rate=0.1", "ppo on Catch, rate=0.2"]


def test_one_title_with_many_other_settings_names_the_folders(tmp_path: Path) -> None:
    runs = [
        run(tmp_path / name, {0: 1.0}, title="ppo on Catch", **dict.fromkeys("abcd", name))
        for name in ("first", "second")
    ]
    labels = [curve.label for curve in read_curves(runs)]
    assert labels == ["ppo on Catch, first", "ppo on Catch, second"]


def test_a_folder_that_is_given_twice_is_one_seed(tmp_path: Path) -> None:
    folder = run(tmp_path / "a", {0: 1.0}, **PPO)
    (curve,) = read_curves([folder, folder])
    assert curve.num_seeds == 1


def test_many_points_share_a_grid(tmp_path: Path) -> None:
    for seed in range(2):
        steps = range(seed, 3000, 2)
        write(tmp_path / f"seed-{seed}" / "metrics.jsonl", {x: float(x) for x in steps})
    (curve,) = read_curves([configured(tmp_path, seeds=2)])
    assert len(curve.env_steps) == 1000
    np.testing.assert_allclose(curve.mean, curve.env_steps)


def test_a_half_line_at_the_end_is_ignored(tmp_path: Path) -> None:
    folder = run(tmp_path / "a", {0: 1.0, 10: 2.0}, **PPO)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"env_steps": 20, "retu')
    (curve,) = read_curves([folder])
    np.testing.assert_array_equal(curve.env_steps, [0, 10])


def test_of_a_resumed_run_the_later_lines_stand(tmp_path: Path) -> None:
    folder = run(tmp_path / "a", {0: 1.0, 10: 2.0, 20: 3.0}, **PPO)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"env_steps": 8, "return_mean": 7.0}\n{"env_steps": 16, "return_mean": 8.0}\n')
    (curve,) = read_curves([folder])
    np.testing.assert_array_equal(curve.env_steps, [0, 8, 16])
    np.testing.assert_array_equal(curve.mean, [1, 7, 8])


@pytest.mark.parametrize("line", ["{broken", '{"return_mean": 1.0}', "[1]"])
def test_other_broken_lines_are_named(tmp_path: Path, line: str) -> None:
    folder = run(tmp_path / "a", {0: 1.0, 10: 2.0}, **PPO)
    file = folder / "metrics.jsonl"
    file.write_text(file.read_text() + f"{line}\n" + file.read_text())
    with pytest.raises(ValueError, match=r"metrics\.jsonl:3 .*Remove that line\."):
        read_curves([folder])


def test_an_unknown_metric_gets_a_suggestion(tmp_path: Path) -> None:
    folder = run(tmp_path / "a", {0: 1.0}, **PPO)
    with pytest.raises(ValueError, match=r"`los`.*mean `loss`\? Known: loss, return_mean\."):
        read_curves([folder], "los")


def test_a_metric_without_values_yet(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`return_mean` has no value yet"):
        read_curves([run(tmp_path / "a", {0: None, 5: float("nan")})])
    with pytest.raises(ValueError, match="is still empty"):
        read_curves([run(tmp_path / "b", {})])


def test_folders_that_no_run_wrote(tmp_path: Path) -> None:
    run(tmp_path / "runs" / "ppo-catch", {0: 1.0}, **PPO)
    with pytest.raises(ValueError, match=r"unknown run `runs` in .*runs\. Known: ppo-catch"):
        read_curves([tmp_path / "runs"])
    with pytest.raises(ValueError, match=r"unknown run `ppo-cath` in .* mean `ppo-catch`\?"):
        read_curves([tmp_path / "runs" / "ppo-cath"])
    with pytest.raises(ValueError, match="Give at least one: its folder"):
        read_curves([])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"no metrics\.jsonl, nor seed-0.*has written nothing yet"):
        read_curves([configured(tmp_path / "empty")])


def test_seeds_without_common_steps(tmp_path: Path) -> None:
    runs = [run(tmp_path / "a", {0: 1.0}, seed=0), run(tmp_path / "b", {9: 1.0}, seed=1)]
    with pytest.raises(ValueError, match=r"one ends at 0, another begins at 9\. .* --resume"):
        read_curves(runs)


def test_runs_of_before_and_of_today_are_one_curve(tmp_path: Path) -> None:
    """An experiment stays the same if classes have new names and records are kept differently."""
    env = {"class": "hocket.envs.cartpole:CartPole"}
    before = run(tmp_path / "a", {0: 1.0, 5: 1.0}, algorithm={"env": env}, tensorboard=True)
    env = {"class": "hocket.envs:CartPole"}
    today = run(tmp_path / "b", {0: 3.0, 5: 3.0}, algorithm={"env": env}, seed=1, loggers=[])
    (curve,) = read_curves([before, today])
    np.testing.assert_array_equal(curve.mean, [2, 2])


@pytest.mark.parametrize("text", ["[1]", "7", "{", '{"seed": 1}'])
def test_a_config_of_no_run(tmp_path: Path, text: str) -> None:
    folder = run(tmp_path / "a", {0: 1.0})
    (folder / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"config\.json (cannot be read|is not the configuration)"):
        read_curves([folder])
