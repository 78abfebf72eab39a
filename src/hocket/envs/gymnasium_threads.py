"""Gymnasium environments in threads of this process, each with its share of them."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from hocket.envs.gymnasium_block import OPEN_SECONDS, Block, EnvFault, Job, MakeBlock, Rows
from hocket.envs.host import HostEnvError, HostStep

Task = Callable[[Block], Any]


class Threads:
    """Live environments whose blocks are stepped by threads.

    Threads of Python share one core, unless the environments leave Python while they step. A thread
    cannot be ended from outside: one that hangs is left behind, and its error is raised.
    """

    def __init__(self, job: Job, num_envs: int) -> None:
        self._job, self._num_envs = job, num_envs
        self._failure: HostEnvError | None = None
        self._rows: Rows | None = None
        self._workers = [_Worker(job.make_block, share) for share in job.shares(num_envs)]
        self._end = weakref.finalize(self, _end, self._workers)
        with self._or_fail():
            self._answers(max(OPEN_SECONDS, job.timeout))

    def reset(self, seeds: np.ndarray) -> Any:
        seeds = np.asarray(seeds)
        obs = self._job.observations.empty(self._num_envs)
        with self._or_fail():
            for worker in self._workers:
                of = worker.share
                worker.do(lambda x, of=of: x.reset(seeds[of].tolist(), [o[of] for o in obs]))
            self._answers()
        return self._job.observations.tree(obs)

    def send(self, actions: Any) -> None:
        # Copied: the caller may use its arrays again before the environments have read them.
        arrays = [x.copy() for x in self._job.actions.arrays(actions)]
        rows = self._rows = Rows.new(self._job.observations, self._num_envs)
        with self._or_fail():
            for worker in self._workers:
                of = worker.share
                worker.do(lambda x, of=of: x.step([a[of] for a in arrays], rows.part(of)))

    def recv(self) -> HostStep:
        rows, self._rows = self._rows, None
        assert rows is not None, "`send` comes before `recv`"
        with self._or_fail():
            self._answers()
        return rows.result(self._job.observations)

    def snapshot(self) -> list[bytes] | None:
        with self._or_fail():
            for worker in self._workers:
                worker.do(lambda x: x.snapshot())
            found = self._answers()
        return None if None in found else [state for states in found for state in states]

    def restore(self, snapshots: list[bytes]) -> None:
        with self._or_fail():
            for worker in self._workers:
                worker.do(lambda x, of=worker.share: x.restore(snapshots[of]))
            self._answers()

    def close(self) -> None:
        self._failure = self._failure or HostEnvError(f"`{self._job.name}` is closed.")
        self._end()

    def _answers(self, timeout: float | None = None) -> list[Any]:
        return [self._answer(worker, timeout or self._job.timeout) for worker in self._workers]

    def _answer(self, worker: _Worker, timeout: float) -> Any:
        first = worker.share.start
        try:
            answer = worker.answers.get(timeout=timeout)
        except queue.Empty:
            number = first + worker.at[0]
            raise self._job.error(number, f"did not answer within {timeout:g} s.") from None
        if isinstance(answer, EnvFault):
            number = None if answer.number is None else first + answer.number
            raise self._job.error(number, answer.text) from answer.__cause__
        if isinstance(answer, BaseException):
            raise answer
        return answer

    @contextmanager
    def _or_fail(self) -> Iterator[None]:
        """Environments that failed once have no defined state: they stay failed."""
        if self._failure:
            raise self._failure
        try:
            yield
        except HostEnvError as error:
            self._failure = error
            raise


class _Worker:
    """A thread, which knows nothing of who asks it: so that this can be forgotten."""

    def __init__(self, make_block: MakeBlock, share: slice) -> None:
        self.share = share
        self.at = [0]
        self.tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        given = (make_block, share.stop - share.start, self.at, self.tasks, self.answers)
        threading.Thread(target=_serve, args=given, daemon=True).start()

    def do(self, task: Task) -> None:
        self.tasks.put(task)


def _serve(
    make_block: MakeBlock,
    num_envs: int,
    at: list[int],
    tasks: queue.SimpleQueue[Task | None],
    answers: queue.SimpleQueue[Any],
) -> None:
    try:
        block = make_block(num_envs, at)
        answers.put(None)
        while (task := tasks.get()) is not None:
            answers.put(task(block))
        block.close()
    except BaseException as error:  # noqa: BLE001 (raised by whoever waits for the answer)
        answers.put(error)


def _end(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.tasks.put(None)
