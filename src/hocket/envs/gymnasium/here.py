"""Gymnasium environments in the thread of whoever steps them."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any

import numpy as np

from hocket.envs.gymnasium.block import Block, EnvFault, Job, Rows
from hocket.envs.host import OPEN_SECONDS, HostEnvError, HostStep


class Here:
    """Live environments that nobody else steps: no thread has to be woken for it.

    If one hangs, so does its caller; somebody else has to ask whether it is overdue.
    """

    def __init__(self, job: Job, num_envs: int) -> None:
        self._job, self._num_envs = job, num_envs
        self._at = [0]
        self._rows: Rows | None = None
        self._failure: HostEnvError | None = None
        self._begun: float | None = None
        self._limit = 0.0
        self._working = threading.Lock()
        self._block: Block | None = None  # made by `reset`, when it can be watched already

    def reset(self, seeds: np.ndarray) -> Any:
        if self._block is None:
            with _Call(self, max(OPEN_SECONDS, self._job.timeout)):
                self._block = self._job.make_block(self._num_envs, self._at)
        obs = self._job.observations.empty(self._num_envs)
        with _Call(self):
            self._block.reset(np.asarray(seeds).tolist(), obs)
        return self._job.observations.tree(obs)

    def send(self, actions: Any) -> None:
        arrays = self._job.actions.arrays(actions)
        rows = Rows.new(self._job.observations, self._num_envs)
        with _Call(self):
            self._made.step(arrays, rows)
        self._rows = rows

    def recv(self) -> HostStep:
        rows, self._rows = self._rows, None
        assert rows is not None, "`send` comes before `recv`"
        return rows.result(self._job.observations)

    def snapshot(self) -> list[bytes] | None:
        with _Call(self):
            return self._made.snapshot()

    def restore(self, snapshots: list[bytes]) -> None:
        with _Call(self):
            self._made.restore(snapshots)

    def close(self) -> None:
        """Those that are at work are left behind."""
        self._failure = self._failure or HostEnvError(f"`{self._job.name}` is closed.")
        if self._block is not None and self._working.acquire(blocking=False):
            block, self._block = self._block, None
            with suppress(Exception):
                block.close()
            self._working.release()

    @property
    def _made(self) -> Block:
        assert self._block is not None, "`reset` comes first"
        return self._block

    def overdue(self) -> HostEnvError | None:
        """What hangs, asked from another thread."""
        begun = self._begun
        if begun is None or time.monotonic() - begun <= self._limit:
            return None
        return self._job.error(self._at[0], f"did not answer within {self._limit:g} s.")


class _Call:
    """Within, environments are at work. Those that failed once have no defined state."""

    def __init__(self, here: Here, limit: float | None = None) -> None:
        self._here, self._limit = here, limit or here._job.timeout

    def __enter__(self) -> None:
        here = self._here
        if here._failure:
            raise here._failure
        here._working.acquire()
        here._limit, here._begun = self._limit, time.monotonic()

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        here = self._here
        here._begun = None
        here._working.release()
        if isinstance(error, EnvFault):
            here._failure = here._job.error(error.number, error.text)
            raise here._failure from None  # its traceback is in the text
        if isinstance(error, HostEnvError):
            here._failure = error
