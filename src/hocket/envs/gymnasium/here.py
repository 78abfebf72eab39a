"""Gymnasium environments in the thread of their caller."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from hocket.envs.gymnasium.block import BlockJob, EnvBlock, EnvFault, StepRows
from hocket.envs.gymnasium.live import Command, LiveBlocks, stays_failed
from hocket.envs.host import HostEnvError


class InCaller(LiveBlocks):
    """Live environments that their caller steps, so that no other thread has to be woken.

    If one hangs, so does its caller. Another thread must ask whether it is overdue.
    """

    def __init__(self, job: BlockJob, num_envs: int) -> None:
        super().__init__(job, num_envs)
        self._at = [0]
        self._all = slice(0, num_envs)
        self._begun: float | None = None
        self._limit = 0.0
        self._working = threading.Lock()
        # Made by `reset`, not here: no other thread could ask yet whether making it is overdue.
        self._block: EnvBlock | None = None
        self._answer: Any = None

    def overdue(self) -> HostEnvError | None:
        """Return the error for an environment that hangs, or None. Called by another thread."""
        begun = self._begun
        if begun is None or time.monotonic() - begun <= self._limit:
            return None
        return self._job.error(self._at[0], f"did not answer within {self._limit:g} s.")

    @stays_failed
    def send(self, actions: Any) -> None:
        # The step is done here, so the actions need not be copied as in `LiveBlocks.send`.
        rows = StepRows.new(self._job.observations, self._num_envs)
        self._do("step", self._job.actions.arrays(actions), rows)
        self._rows = rows

    def _tell(self, command: Callable[[slice], Command]) -> None:
        if self._block is None:
            self._limit = self._open_seconds
            self._block = self._watched(self._job.make_block, self._num_envs, self._at)
            self._limit = self._job.timeout
        self._answer = self._do(*command(self._all))

    def _answers(self) -> list[Any]:
        return [self._answer]

    def _do(self, name: str, *arguments: Any) -> Any:
        return self._watched(getattr(self._block, name), *arguments)

    def _watched(self, function: Callable[..., Any], *arguments: Any) -> Any:
        with self._working:
            self._begun = time.monotonic()
            try:
                return function(*arguments)
            except EnvFault as fault:
                return self._content(self._all, fault)
            finally:
                self._begun = None

    def _end(self) -> None:
        """Close the environments, unless one is at work: then they are left behind."""
        if self._block is not None and self._working.acquire(blocking=False):
            block, self._block = self._block, None
            with suppress(Exception):
                block.close()
            self._working.release()
