"""The records of a run: one line of metrics after another, and a summary.

A run's folder has `metrics.jsonl`; one of several seeds has `seed-0/metrics.jsonl` and so on.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

WINDOW = 100
"""Over how many of the last episodes `return_mean` goes."""

Metrics = dict[str, np.ndarray]
Row = dict[str, Any]


class Window:
    """The last episodes: as many iterations as it takes to have `WINDOW` of them."""

    def __init__(self) -> None:
        self._parts: deque[tuple[float, float]] = deque()  # (episodes, sum of their returns)

    def add(self, episodes: float, total: float) -> None:
        """The episodes that ended in one iteration, or in several."""
        if episodes:
            self._parts.append((episodes, total))
        while sum(n for n, _ in self._parts) - (self._parts[0][0] if self._parts else 0) >= WINDOW:
            self._parts.popleft()

    @property
    def mean(self) -> float:
        episodes = sum(n for n, _ in self._parts)
        return sum(total for _, total in self._parts) / episodes if episodes else math.nan


class Record:
    """The rows of one agent, in a file; a row covers some iterations."""

    def __init__(self, folder: Path, *, keep: int = 0, board: bool = False) -> None:
        """Continue with the rows up to iteration `keep`; later ones are of a run that was lost."""
        folder.mkdir(parents=True, exist_ok=True)
        self.window = Window()
        self._path = folder / "metrics.jsonl"
        self._pending: list[Metrics] = []
        rows = [r for r in read_rows(self._path) if r["iteration"] <= keep] if keep else []
        for row in rows:
            if row.get("episodes") and row["return_mean"] is not None:
                self.window.add(row["episodes"], row["return_mean"] * row["episodes"])
        # In one piece: a run that is killed right here keeps its rows.
        fresh = self._path.with_suffix(".new")
        fresh.write_text("".join(map(_line, rows)))
        fresh.replace(self._path)
        self._file = self._path.open("a")
        after = rows[-1]["env_steps"] + 1 if rows else None
        self._board = import_tensorboard()(str(folder), purge_step=after) if board else None

    def add(self, metrics: Metrics) -> None:
        """The metrics of some iterations, `[iterations, ...]`."""
        self._pending.append(metrics)
        for episodes, total in zip(*_episodes(metrics), strict=True):
            self.window.add(episodes, total)

    def write(self, iteration: int, env_steps: int, seconds: float, **more: float) -> None:
        """One row of everything that was added since the last; `more` is written as it is."""
        if not self._pending and not more:
            return
        row = {
            "iteration": iteration, "env_steps": env_steps, "seconds": round(seconds, 3),
            **_summed(self._pending), **{k: _number(v) for k, v in more.items()},
        }  # fmt: skip
        self._pending = []
        self._file.write(_line(row))
        self._file.flush()
        if self._board is not None:
            for name, value in row.items():
                if name not in ("iteration", "env_steps") and value is not None:
                    self._board.add_scalar(name, value, env_steps)

    def close(self) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()


class Records:
    """The records of all seeds of a run; use it as a context.

    A row covers `every` iterations, however they were cut into blocks; a save or an evaluation ends
    one early.
    """

    def __init__(
        self,
        folder: Path,
        *,
        seeds: int | None,
        every: int,
        keep: int = 0,
        board: bool = False,
    ) -> None:
        folders = [folder] if seeds is None else [folder / f"seed-{i}" for i in range(seeds)]
        self.agents = [Record(each, keep=keep, board=board) for each in folders]
        self._alone = seeds is None
        self._every, self._at = every, keep

    def __enter__(self) -> Records:
        return self

    def __exit__(self, *_: object) -> None:
        for agent in self.agents:
            agent.close()

    def add(self, metrics: Metrics, steps: Callable[[int], int], seconds: float) -> None:
        """The metrics of the next iterations; `steps(i)` are the environment steps after i."""
        count = len(next(iter(metrics.values())))
        start = 0
        while start < count:
            stop = min(count, start + self._every - self._at % self._every)
            for i, agent in enumerate(self.agents):
                agent.add(
                    {k: (v if self._alone else v[:, i])[start:stop] for k, v in metrics.items()}
                )
            self._at += stop - start
            if self._at % self._every == 0:
                self._write(steps(self._at), seconds)
            start = stop

    def flush(self, env_steps: int, seconds: float, more: Sequence[dict[str, float]] = ()) -> None:
        """Write what was added and not written yet, with further numbers of each agent."""
        self._write(env_steps, seconds, more)

    @property
    def return_means(self) -> list[float]:
        """Of each agent, the mean return of its last episodes; nan where none ended."""
        return [agent.window.mean for agent in self.agents]

    def _write(self, env_steps: int, seconds: float, more: Sequence[dict[str, float]] = ()) -> None:
        for agent, extra in zip(self.agents, more or [{}] * len(self.agents), strict=True):
            agent.write(self._at, env_steps, seconds, **extra)


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a file of metrics; a last one that was cut off in the middle is left out."""
    if not path.exists():
        return
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines, 1):
        try:
            yield json.loads(line)
        except ValueError as error:
            if number < len(lines):
                raise ValueError(f"{path}:{number} is not a line of metrics: {error}.") from error


def write_json(path: Path, value: Any) -> None:
    """Replace a file by a whole one, or leave it as it was."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(value, indent=2) + "\n")
    fresh.replace(path)


def _episodes(metrics: Metrics) -> tuple[np.ndarray, np.ndarray]:
    """Of each iteration, how many episodes ended and the sum of their returns."""
    if "episode_count" not in metrics:
        return np.zeros(0), np.zeros(0)
    count, total = metrics["episode_count"], metrics["episode_return"]
    return count.reshape(len(count), -1).sum(1), total.reshape(len(total), -1).sum(1)


def _summed(parts: list[Metrics]) -> Row:
    """Means over iterations; episodes are counted, and their returns and lengths averaged."""
    if not parts:
        return {}
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    ended = int(whole["episode_count"].sum()) if "episode_count" in whole else 0
    row: Row = {"episodes": ended}
    for name in ("return", "length"):
        total = whole.get(f"episode_{name}")
        row[f"{name}_mean"] = _number(total.sum() / ended) if ended and total is not None else None
    others = {k: v for k, v in whole.items() if not k.startswith("episode_")}
    return row | {name: _number(v.mean(dtype=np.float64)) for name, v in others.items()}


def _number(x: Any) -> float | None:
    """JSON knows no nan."""
    return float(x) if math.isfinite(x) else None


def _line(row: Row) -> str:
    return json.dumps(row) + "\n"


def import_tensorboard() -> Any:
    """The class that writes for TensorBoard, or what to install."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise ImportError(
            "--tensorboard needs the package tensorboardX. Run: pip install 'hocket[tensorboard]'"
        ) from error
    return SummaryWriter
