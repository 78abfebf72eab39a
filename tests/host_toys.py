"""A small environment on the host for tests, in plain NumPy, which can be saved and restored."""

from __future__ import annotations

import pickle
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from hocket.envs import Box, Discrete, Space
from hocket.envs.host import HostStep


@dataclass(frozen=True)
class Walk:
    """A walk on a line. Episodes end at either end of the line, or after `max_steps`."""

    max_steps: int = 9
    seconds: float = 0.0
    """How long a step takes."""
    saves: bool = True
    fault_at: int = 0
    """The number of the `send` that raises; 0 for none."""

    @property
    def name(self) -> str:
        return "host:Walk"

    @property
    def observation_space(self) -> Space:
        return Box(-10.0, 10.0, shape=(2,))

    @property
    def action_space(self) -> Space:
        return Discrete(2)

    def open(self, num_envs: int) -> LiveWalk:
        return LiveWalk(self, num_envs)


class LiveWalk:
    def __init__(self, env: Walk, num: int) -> None:
        self.env, self.num, self.calls = env, num, 0
        self.at, self.steps = np.zeros(num, np.float32), np.zeros(num, np.int64)
        self.rngs: list[Any] = []
        self.action: Any = None

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        self.rngs = [np.random.default_rng(int(seed)) for seed in seeds]
        for i in range(self.num):
            self._begin(i)
        return self._obs()

    def send(self, actions: Any) -> None:
        self.action = np.asarray(actions)
        self.calls += 1
        if self.calls == self.env.fault_at:
            raise RuntimeError("the walk is on fire")

    def recv(self) -> HostStep:
        time.sleep(self.env.seconds)
        noise = np.array([rng.normal() for rng in self.rngs], np.float32)
        self.at = self.at + np.where(self.action == 1, 1, -1).astype(np.float32) + 0.1 * noise
        self.steps = self.steps + 1
        final = self._obs()
        terminated = np.abs(self.at) > 3
        truncated = (self.steps >= self.env.max_steps) & ~terminated
        reward = (1.0 + 0.1 * self.at).astype(np.float32)
        for i in np.flatnonzero(terminated | truncated):
            self._begin(int(i))
        return HostStep(self._obs(), reward, terminated, truncated, final)

    def snapshot(self) -> list[bytes] | None:
        if not self.env.saves:
            return None
        rows = zip(self.at, self.steps, self.rngs, strict=True)
        return [pickle.dumps(row) for row in rows]

    def restore(self, snapshots: list[bytes]) -> None:
        at, steps, rngs = zip(*map(pickle.loads, snapshots), strict=True)
        self.at, self.steps, self.rngs = np.array(at), np.array(steps), list(rngs)

    def close(self) -> None:
        self.rngs = []

    def _begin(self, i: int) -> None:
        self.at, self.steps = self.at.copy(), self.steps.copy()
        self.at[i], self.steps[i] = self.rngs[i].uniform(-1, 1), 0

    def _obs(self) -> np.ndarray:
        return np.stack([self.at, self.steps / 10], -1).astype(np.float32)
