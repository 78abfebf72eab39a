from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hocket.report.loggers import About
from hocket.report.loggers.jsonl import Jsonl, read_rows, rows_until
from hocket.report.outcome import Outcome
from hocket.report.records import Records, Row, Window
from hocket.training.folder import agent_folders


def metrics(first: int, count: int, seeds: int | None = None) -> dict[str, np.ndarray]:
    """Iteration i has loss i, and ends i episodes of return i in each of two environments."""
    axes = () if seeds is None else (seeds,)
    i = np.arange(first, first + count, dtype=np.float32).reshape(count, *[1] * len(axes))
    i = np.broadcast_to(i, (count, *axes))
    each = np.repeat(i[..., None], 2, axis=-1)
    return {"episode_count": each, "episode_return": each * each, "episode_length": each,
            "loss": i}  # fmt: skip


def begun(folder: Path, seeds: int = 1, last_step: int = 0) -> Jsonl:
    """Return the logger of a run that continues from a step."""
    progress = Outcome(folder, "test", seeds, 100)
    logger = Jsonl()
    logger.begin(About("", folder, agent_folders(folder, 0, seeds), {}, progress, last_step))
    return logger


def write(folder: Path, blocks: list[int], keep: int = 0) -> list[dict[str, float]]:
    logger = begun(folder, last_step=10 * keep)
    before = [list(rows_until(folder / "metrics.jsonl", 10 * keep))]
    records = Records(None, logger.row, every=3, start_at=keep, before=before)
    at = keep
    for count in blocks:
        records.add(metrics(at, count), lambda i: 10 * i, seconds=1.0)
        at += count
    records.flush(10 * at, 1.0)
    logger.end({})
    return list(read_rows(folder / "metrics.jsonl"))


def test_rows_do_not_depend_on_the_blocks(tmp_path: Path) -> None:
    rows = write(tmp_path / "a", [1, 1, 5, 1])
    assert rows == write(tmp_path / "b", [8]) == write(tmp_path / "c", [2] * 4)
    assert [r["iteration"] for r in rows] == [3, 6, 8]
    assert [r["env_steps"] for r in rows] == [30, 60, 80]
    assert rows[1]["loss"] == 4 and rows[1]["episodes"] == 2 * (3 + 4 + 5)
    assert rows[1]["return_mean"] == pytest.approx((9 + 16 + 25) / 12)
    assert rows[1]["length_mean"] == 1


def test_going_on_drops_what_was_lost(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole", [9])
    write(tmp_path / "cut", [8])
    with (tmp_path / "cut/metrics.jsonl").open("a") as file:
        file.write('{"iteration": 9, "env_st')
    assert write(tmp_path / "cut", [3], keep=6) == whole


def test_the_last_episodes_go_on_from_the_rows_before() -> None:
    told: list[Row] = []
    first = Records(None, lambda step, row, agent: told.append(row), every=1)
    first.add(metrics(1, 4), lambda i: i, 0.0)
    second = Records(None, lambda *_: None, every=1, start_at=4, before=[told])
    assert second.return_means == pytest.approx(first.return_means) == [3.0]


def test_a_row_without_episodes(tmp_path: Path) -> None:
    logger = begun(tmp_path)
    records = Records(None, logger.row, every=1)
    records.add({"loss": np.array([np.nan])}, lambda i: i, 0.0)
    assert np.isnan(records.return_means[0])
    logger.end({})
    row = next(read_rows(tmp_path / "metrics.jsonl"))
    assert row == {
        "iteration": 1, "env_steps": 1, "seconds": 0.0, "episodes": 0, "return_mean": None,
        "length_mean": None, "loss": None,
    }  # fmt: skip
    assert list(row)[:3] == ["iteration", "env_steps", "seconds"]  # what a reader sees first


def test_seeds_are_apart(tmp_path: Path) -> None:
    logger = begun(tmp_path, seeds=2)
    records = Records(2, logger.row, every=1)
    both = metrics(1, 2, seeds=2)
    both["loss"] = both["loss"] * np.array([1.0, -1.0])
    records.add(both, lambda i: i, 0.0)
    records.flush(2, 0.0, [{"eval_return_mean": 5.0}, {"eval_return_mean": 6.0}])
    logger.end({})
    rows = [list(read_rows(tmp_path / f"seed-{i}/metrics.jsonl")) for i in range(2)]
    assert [r["loss"] for r in rows[1][:2]] == [-1.0, -2.0]
    assert [r[-1]["eval_return_mean"] for r in rows] == [5.0, 6.0]


def test_broken_lines_are_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"env_steps": 1}\nnot json\n' + json.dumps({"env_steps": 2}) + "\n")
    with pytest.raises(ValueError, match=r"metrics.jsonl:2 is not a row of metrics"):
        list(read_rows(path))


def test_window() -> None:
    window = Window()
    assert np.isnan(window.mean)
    window.add(60, 60.0)
    window.add(60, 120.0)
    assert window.mean == 1.5  # both are needed for a hundred
    window.add(40, 40.0)
    assert window.mean == 1.6  # the last two are enough
