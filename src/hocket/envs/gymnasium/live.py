"""Live Gymnasium environments: the part that does not depend on where their blocks are stepped."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np

from hocket.envs.gymnasium.block import BlockJob, EnvFault, StepRows
from hocket.envs.host import OPEN_SECONDS, HostEnvError, HostStep

Method = TypeVar("Method", bound=Callable[..., Any])
Command: TypeAlias = tuple[Any, ...]
"""A command to a block: the name of a method, then its arguments."""


def stays_failed(method: Method) -> Method:
    """Wrap a method so that its failure ends the environments, and is raised again by later calls.

    After one environment fails, the state of the others is undefined.
    """

    @wraps(method)
    def guarded(self: LiveBlocks, *args: Any) -> Any:
        if self._failure:
            raise self._failure
        try:
            return method(self, *args)
        except HostEnvError as error:
            self._failure = error
            self._end()
            raise

    return cast(Method, guarded)


class LiveBlocks(ABC):
    """Live environments in blocks. Each block has a worker, which carries out commands."""

    def __init__(self, job: BlockJob, num_envs: int) -> None:
        self._job, self._num_envs = job, num_envs
        self._open_seconds = max(OPEN_SECONDS, job.timeout)
        self._failure: HostEnvError | None = None
        self._rows: StepRows | None = None

    @abstractmethod
    def _tell(self, command: Callable[[slice], Command]) -> None:
        """Send each worker `command(share)`, where `share` is the range of its environments."""

    @abstractmethod
    def _answers(self) -> list[Any]:
        """Return each worker's answer, in order, or raise the first failure."""

    @abstractmethod
    def _end(self) -> object:
        """End all workers."""

    def _each(self, command: Callable[[slice], Command]) -> list[Any]:
        self._tell(command)
        return self._answers()

    @stays_failed
    def reset(self, seeds: np.ndarray) -> Any:
        obs = self._job.observations.empty(self._num_envs)
        self._each(lambda of: ("reset", seeds[of].tolist(), [x[of] for x in obs]))
        return self._job.observations.tree(obs)

    @stays_failed
    def send(self, actions: Any) -> None:
        # Copied, because the caller may reuse its arrays before the environments have read them.
        arrays = [x.copy() for x in self._job.actions.arrays(actions)]
        rows = self._rows = StepRows.new(self._job.observations, self._num_envs)
        self._tell(lambda of: ("step", [x[of] for x in arrays], rows.part(of)))

    @stays_failed
    def recv(self) -> HostStep:
        rows, self._rows = self._rows, None
        assert rows is not None, "`send` comes before `recv`"
        self._answers()
        return rows.result(self._job.observations)

    @stays_failed
    def snapshot(self) -> list[bytes] | None:
        blocks = self._each(lambda of: ("snapshot",))
        return None if None in blocks else [state for states in blocks for state in states]

    @stays_failed
    def restore(self, snapshots: list[bytes]) -> None:
        self._each(lambda of: ("restore", snapshots[of]))

    def close(self) -> None:
        self._failure = self._failure or HostEnvError(f"`{self._job.name}` is closed.")
        self._end()

    def _content(self, share: slice, answer: Any) -> Any:
        """Return a worker's `answer`, or raise it if it is an error.

        An environment's number within its block becomes its number among all environments.
        """
        if isinstance(answer, EnvFault):
            number = None if answer.number is None else share.start + answer.number
            raise self._job.error(number, answer.text) from None  # the text contains the traceback
        if isinstance(answer, BaseException):
            raise answer
        return answer
