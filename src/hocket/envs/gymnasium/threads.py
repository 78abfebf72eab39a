"""Gymnasium environments in threads of this process, each with its share of them."""

from __future__ import annotations

import os
import select
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from hocket.envs.gymnasium.block import Block, EnvFault, Job, MakeBlock, Rows
from hocket.envs.host import OPEN_SECONDS, HostEnvError, HostStep

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
        if not worker.answered.wait(timeout):
            number = first + worker.at[0]
            raise self._job.error(number, f"did not answer within {timeout:g} s.")
        answer = worker.answers.popleft()
        if isinstance(answer, EnvFault):
            number = None if answer.number is None else first + answer.number
            raise self._job.error(number, answer.text) from None  # its traceback is in the text
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


class _Bell:
    """Wakes one thread that waits.

    Through a pipe, whose calls let go of Python's lock: there and back takes 7 microseconds, where
    two queues take 40 to 120, because each thread wakes up only to wait for that lock.
    """

    def __init__(self) -> None:
        self._in, self._out = os.pipe()
        self._poll = select.poll()
        self._poll.register(self._in, select.POLLIN)
        # Not at the end of Python: a thread that waits would wake up, for nothing.
        weakref.finalize(self, _close, self._in, self._out).atexit = False

    def ring(self) -> None:
        os.write(self._out, b".")

    def wait(self, timeout: float | None = None) -> bool:
        """Whether it rang in time."""
        if timeout is not None and not self._poll.poll(1000 * timeout):
            return False
        return bool(os.read(self._in, 1))


def _close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)


class _Worker:
    """A thread and what it is told. It knows nothing of who asks, so that they can be forgotten."""

    def __init__(self, make_block: MakeBlock, share: slice) -> None:
        self.share = share
        self.at = [0]
        self.tasks: deque[Task | None] = deque()
        self.answers: deque[Any] = deque()
        self.asked, self.answered = _Bell(), _Bell()
        given = (make_block, share.stop - share.start, self)
        threading.Thread(target=_serve, args=given, daemon=True).start()

    def do(self, task: Task | None) -> None:
        self.tasks.append(task)
        self.asked.ring()

    def next_task(self) -> Task | None:
        self.asked.wait()
        return self.tasks.popleft()

    def answer(self, answer: Any) -> None:
        self.answers.append(answer)
        self.answered.ring()


def _serve(make_block: MakeBlock, num_envs: int, worker: _Worker) -> None:
    try:
        block = make_block(num_envs, worker.at)
        worker.answer(None)
        while (task := worker.next_task()) is not None:
            worker.answer(task(block))
        block.close()
    except BaseException as error:  # noqa: BLE001 (raised by whoever waits for the answer)
        worker.answer(error)


def _end(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.do(None)
