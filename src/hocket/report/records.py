"""From the metrics of iterations to the rows that loggers are told."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

WINDOW = 100
"""Over how many of the last episodes `return_mean` goes."""

Metrics = dict[str, np.ndarray]
Row = dict[str, Any]
Tell = Callable[[int, Row, int], None]
"""Takes the environment steps, the numbers of a row, and the index of the agent."""


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


class AgentRows:
    """One agent: its last episodes, and the metrics that no row has told yet."""

    def __init__(self, before: Iterable[Mapping[str, Any]] = ()) -> None:
        """Continue after the rows that were told before."""
        self.window = Window()
        self._pending: list[Metrics] = []
        for row in before:
            if row.get("episodes") and row["return_mean"] is not None:
                self.window.add(row["episodes"], row["return_mean"] * row["episodes"])

    def add(self, metrics: Metrics) -> None:
        """The metrics of some iterations, `[iterations, ...]`."""
        self._pending.append(metrics)
        for episodes, total in zip(*_episodes(metrics), strict=True):
            self.window.add(episodes, total)

    def row(self, iteration: int, seconds: float, more: Mapping[str, float]) -> Row | None:
        """Everything that was added since the last row; None where that is nothing."""
        if not self._pending and not more:
            return None
        row = {"iteration": iteration, "seconds": round(seconds, 3), **_summed(self._pending)}
        self._pending = []
        return row | {name: _number(value) for name, value in more.items()}


class Records:
    """The rows of all agents of a run, told as they are complete.

    A row covers `every` iterations, however they were cut into blocks; a save or an evaluation ends
    one early.
    """

    def __init__(
        self,
        agents: int | None,
        tell: Tell,
        *,
        every: int,
        start_at: int = 0,
        before: Sequence[Iterable[Mapping[str, Any]]] = (),
    ) -> None:
        """`agents` is None where metrics have no axis of agents; `before` has the rows of each."""
        rows = before or [()] * (agents or 1)
        self.agents = [AgentRows(mine) for mine in rows]
        self._alone, self._tell = agents is None, tell
        self._every, self._at = every, start_at

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
                self.flush(steps(self._at), seconds)
            start = stop

    def flush(self, env_steps: int, seconds: float, more: Sequence[dict[str, float]] = ()) -> None:
        """Tell what was added and not told yet, with further numbers of each agent."""
        extras = more or [{}] * len(self.agents)
        for i, (agent, extra) in enumerate(zip(self.agents, extras, strict=True)):
            row = agent.row(self._at, seconds, extra)
            if row is not None:
                self._tell(env_steps, row, i)

    @property
    def return_means(self) -> list[float]:
        """For each agent the mean return of its last episodes; nan where none ended."""
        return [agent.window.mean for agent in self.agents]


def _episodes(metrics: Metrics) -> tuple[np.ndarray, np.ndarray]:
    """For each iteration, how many episodes ended and the sum of their returns."""
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
