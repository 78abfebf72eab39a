"""Turns the metrics of iterations into rows for loggers."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

WINDOW = 100
"""The number of latest episodes that `return_mean` averages. It may average a few more, because it
takes all episodes of an iteration."""

Metrics = dict[str, np.ndarray]
Row = dict[str, Any]
Tell = Callable[[int, Row, int], None]
"""A function that receives a row: the environment steps, the numbers, and the agent's index."""


class Window:
    """The latest episodes, from as many whole iterations as it takes to have `WINDOW` episodes."""

    def __init__(self) -> None:
        self._parts: deque[tuple[float, float]] = (
            deque()
        )  # (number of episodes, sum of their returns) of each iteration

    def add(self, episodes: float, total: float) -> None:
        """Add the number of episodes that ended in an iteration, and the sum of their returns."""
        if episodes:
            self._parts.append((episodes, total))
        # Drop the oldest iteration while the others have enough episodes without it.
        while sum(n for n, _ in self._parts) - (self._parts[0][0] if self._parts else 0) >= WINDOW:
            self._parts.popleft()

    @property
    def mean(self) -> float:
        episodes = sum(n for n, _ in self._parts)
        return sum(total for _, total in self._parts) / episodes if episodes else math.nan


class AgentRows:
    """The data for an agent's next row: its latest episodes, and metrics that are in no row yet."""

    def __init__(self, before: Iterable[Mapping[str, Any]] = ()) -> None:
        """Continue after the rows `before`, which the run wrote until it was interrupted."""
        self.window = Window()
        self._pending: list[Metrics] = []
        for row in before:
            if row.get("episodes") and row["return_mean"] is not None:
                self.window.add(row["episodes"], row["return_mean"] * row["episodes"])

    def add(self, metrics: Metrics) -> None:
        """Add the metrics of some iterations, `[iterations, ...]`."""
        self._pending.append(metrics)
        for episodes, total in zip(*_episodes(metrics), strict=True):
            self.window.add(episodes, total)

    def row(self, iteration: int, seconds: float, more: Mapping[str, float]) -> Row | None:
        """Return a row of the metrics added since the last row; None if there are none."""
        if not self._pending and not more:
            return None
        row = {"iteration": iteration, "seconds": round(seconds, 3), **_summed(self._pending)}
        self._pending = []
        return row | {name: _number(value) for name, value in more.items()}


class Records:
    """The rows of all agents of a run. Each is passed to `tell` when it is complete.

    A row covers `every` iterations, however many iterations each call of `add` brings. A save or an
    evaluation ends a row early.
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
        """Start anew, or continue after each agent's earlier rows, which are in `before`.

        `agents` is the number of agents, or None if metrics have no axis of agents.
        """
        rows = before or [()] * (agents or 1)
        self.agents = [AgentRows(mine) for mine in rows]
        self._alone, self._tell = agents is None, tell
        self._every, self._at = every, start_at

    def add(self, metrics: Metrics, steps: Callable[[int], int], seconds: float) -> None:
        """Add metrics of the next iterations. `steps(i)` is the step count after iteration i."""
        count = len(next(iter(metrics.values())))
        start = 0
        while start < count:
            # Rows end at multiples of `every` from the run's first iteration on, so that a resumed
            # run has the same rows.
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
        """End each agent's row, and pass it to `tell`. `more` has numbers to add to each row."""
        extras = more or [{}] * len(self.agents)
        for i, (agent, extra) in enumerate(zip(self.agents, extras, strict=True)):
            row = agent.row(self._at, seconds, extra)
            if row is not None:
                self._tell(env_steps, row, i)

    @property
    def return_means(self) -> list[float]:
        """The mean return of each agent's last episodes; nan if no episode has ended."""
        return [agent.window.mean for agent in self.agents]


def _episodes(metrics: Metrics) -> tuple[np.ndarray, np.ndarray]:
    """Return, for each iteration, how many episodes ended and the sum of their returns."""
    if "episode_count" not in metrics:
        return np.zeros(0), np.zeros(0)
    count, total = metrics["episode_count"], metrics["episode_return"]
    return count.reshape(len(count), -1).sum(1), total.reshape(len(total), -1).sum(1)


def _summed(parts: list[Metrics]) -> Row:
    """Return a row with the mean return and length of an episode, and the mean of other metrics."""
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
    """Return a float, or None for nan and infinity, which JSON does not have."""
    return float(x) if math.isfinite(x) else None
