"""Gymnasium environments in threads of this process, with one block for each thread."""

from __future__ import annotations

import os
import select
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from hocket.envs.gymnasium.block import BlockJob, MakeBlock
from hocket.envs.gymnasium.live import Command, LiveBlocks, stays_failed


class InThreads(LiveBlocks):
    """Live environments whose blocks are stepped by threads.

    Python's threads share one core, except while an environment steps in code that releases the
    GIL. A thread cannot be ended from outside, so one that hangs is left behind.
    """

    def __init__(self, job: BlockJob, num_envs: int) -> None:
        super().__init__(job, num_envs)
        self._workers = [_BlockThread(job.make_block, share) for share in job.shares(num_envs)]
        self._finish = weakref.finalize(self, _end, self._workers)
        self._open()

    @stays_failed
    def _open(self) -> None:
        for worker in self._workers:
            self._answer_of(worker, self._open_seconds)

    def _tell(self, command: Callable[[slice], Command]) -> None:
        for worker in self._workers:
            worker.tell(command(worker.share))

    def _answers(self) -> list[Any]:
        return [self._answer_of(worker, self._job.timeout) for worker in self._workers]

    def _end(self) -> None:
        self._finish()

    def _answer_of(self, worker: _BlockThread, seconds: float) -> Any:
        if not worker.answered.wait(seconds):
            number = worker.share.start + worker.at[0]
            raise self._job.error(number, f"did not answer within {seconds:g} s.")
        return self._content(worker.share, worker.answers.popleft())


class _Bell:
    """Wakes one waiting thread through a pipe.

    Reading and writing a pipe releases the GIL, so a round trip takes 7 microseconds. With two
    queues it takes 40 to 120, because each thread wakes up only to wait for the GIL.
    """

    def __init__(self) -> None:
        self._in, self._out = os.pipe()
        self._poll = select.poll()
        self._poll.register(self._in, select.POLLIN)
        # The pipe stays open when Python exits, because closing it would only wake a thread.
        weakref.finalize(self, _close, self._in, self._out).atexit = False

    def ring(self) -> None:
        os.write(self._out, b".")

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the bell rings. Return False if `timeout` seconds pass first."""
        if timeout is not None and not self._poll.poll(1000 * timeout):
            return False
        return bool(os.read(self._in, 1))


def _close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)


class _BlockThread:
    """A thread that carries out commands. It holds no reference that keeps `InThreads` alive."""

    def __init__(self, make_block: MakeBlock, share: slice) -> None:
        self.share = share
        self.at = [0]
        self.commands: deque[Command] = deque()
        self.answers: deque[Any] = deque()
        self.asked, self.answered = _Bell(), _Bell()
        threading.Thread(target=self._serve, args=(make_block,), daemon=True).start()

    def tell(self, command: Command) -> None:
        self.commands.append(command)
        self.asked.ring()

    def _answer(self, answer: Any) -> None:
        self.answers.append(answer)
        self.answered.ring()

    def _serve(self, make_block: MakeBlock) -> None:
        try:
            block = make_block(self.share.stop - self.share.start, self.at)
            self._answer(None)
            while self.asked.wait() and (command := self.commands.popleft()):
                name, *arguments = command
                self._answer(getattr(block, name)(*arguments))
            block.close()
        except BaseException as error:  # noqa: BLE001 (raised by whoever waits for the answer)
            self._answer(error)


def _end(workers: list[_BlockThread]) -> None:
    for worker in workers:
        worker.tell(())
