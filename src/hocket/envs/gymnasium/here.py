"""Gymnasium environments that are stepped in the thread of their caller."""

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
    """Live environments that are stepped in their caller's thread, so no other thread is woken.

    If an environment hangs, so does the caller, and another thread must call `overdue` to find out.
    """

    def __init__(self, job: BlockJob, num_envs: int) -> None:
        super().__init__(job, num_envs)
        self._at = [0]
        self._all = slice(0, num_envs)
        self._begun: float | None = None
        self._limit = 0.0
        self._working = threading.Lock()
        # `reset` makes the block. If an environment hung here, in `__init__`, nobody would notice,
        # because no other thread can call `overdue` yet.
        self._block: EnvBlock | None = None
        self._answer: Any = None

    def overdue(self) -> HostEnvError | None:
        """Return the error of an environment that hangs, else None. Another thread calls this."""
        begun = self._begun
        if begun is None or time.monotonic() - begun <= self._limit:
            return None
        return self._job.error(self._at[0], f"did not answer within {self._limit:g} s.")

    @stays_failed
    def send(self, actions: Any) -> None:
        # The step ends before this returns, so actions need not be copied as in `LiveBlocks.send`.
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
        """Close the environments. If one of them is stepping, it may hang, so leave all open."""
        if self._block is not None and self._working.acquire(blocking=False):
            block, self._block = self._block, None
            with suppress(Exception):
                block.close()
            self._working.release()
