"""Gymnasium environments in worker processes, with actions and results in shared memory."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np

from hocket.envs.gymnasium import worker
from hocket.envs.gymnasium.block import BlockJob, StepRows
from hocket.envs.gymnasium.live import Command, LiveBlocks, stays_failed
from hocket.envs.host import HostEnvError, HostStep
from hocket.system.children import KILL_SECONDS, Child, at_end, end_all, last_words
from hocket.system.messages import MessageSocket
from hocket.system.names import file_modules
from hocket.system.shared_memory import MemoryFile

GRACE_SECONDS = 2.0
LOOK_SECONDS = 1.0
"""Seconds between checks that all processes are alive, while none of them answers."""


@dataclass
class _BlockProcess:
    """A worker process, and the connection over which it gets commands."""

    index: int
    share: slice
    child: Child
    line: MessageSocket

    def write(self, message: Any) -> None:
        """Send a message. A process that is gone is noticed later, when its answer is missing."""
        with contextlib.suppress(OSError):
            self.line.write(message)


class _Lost(HostEnvError):
    """Raised for a worker process that no longer answers."""


class InProcesses(LiveBlocks):
    """Live environments whose blocks are stepped by processes. A step wakes each process once."""

    def __init__(self, job: BlockJob, num_envs: int) -> None:
        if sys.platform != "linux":
            raise ValueError('vectorize="processes" needs Linux. Use vectorize="threads".')
        super().__init__(job, num_envs)
        self.restarts = 0
        """Number of times a worker was started again, because it died or hung."""
        shares = job.shares(num_envs)
        self._layout = worker.SharedArrays(job.observations, job.actions, num_envs, len(shares))
        self._memory = MemoryFile.create(self._layout.nbytes)
        self._actions, self._shared, self._at = self._layout.arrays(self._memory)
        self._seen = job.observations.empty(num_envs)
        self._seeds = np.zeros(num_envs, np.uint32)
        self._processes: list[_BlockProcess] = []
        self._finish = at_end(self, _end, self._processes, self._memory)
        self._open(shares)

    @stays_failed
    def _open(self, shares: Sequence[slice]) -> None:
        self._processes += [self._start(i, share) for i, share in enumerate(shares)]
        for process in self._processes:
            self._introduce(process)
        self._answers_of(self._processes, self._open_seconds)

    @stays_failed
    def reset(self, seeds: np.ndarray) -> Any:
        self._seeds = np.array(seeds, np.uint32)
        self._each(lambda of: ("reset", self._seeds[of].tolist()))
        return self._job.observations.tree(self._copied_obs())

    @stays_failed
    def send(self, actions: Any) -> None:
        # Workers touch the shared arrays only between a command and their answer, so not now.
        for shared, given in zip(self._actions, self._job.actions.arrays(actions), strict=True):
            shared[:] = given
        self._tell(lambda of: ("step",))

    @stays_failed
    def recv(self) -> HostStep:
        before = self._seen
        for process, answer in self._heard(self._processes, self._job.timeout):
            if isinstance(answer, _Lost):
                self._restart(process, answer, before)
        rows = StepRows.new(self._job.observations, self._num_envs)
        for mine, shared in zip(rows[1:4], self._shared[1:4], strict=True):
            mine[:] = shared
        done = rows.terminated | rows.truncated
        for mine, shared in zip(rows.final, self._shared.final, strict=True):
            mine[done] = shared[done]
        return rows._replace(obs=self._copied_obs()).result(self._job.observations)

    def _copied_obs(self) -> list[np.ndarray]:
        """Return the observations in new arrays, which are also kept in case a process dies."""
        self._seen = self._job.observations.empty(self._num_envs)
        for mine, shared in zip(self._seen, self._shared.obs, strict=True):
            mine[:] = shared
        return self._seen

    def _start(self, index: int, share: slice) -> _BlockProcess:
        mine, theirs = socket.socketpair()
        with theirs:
            fd = theirs.fileno()
            argv = (sys.executable, "-m", worker.__name__, str(fd), str(os.getpid()))
            # An environment may use JAX, but must leave the accelerator to the training.
            child = Child(argv, {"JAX_PLATFORMS": "cpu", **os.environ}, fds=[fd])
        return _BlockProcess(index, share, child, MessageSocket(mine))

    def _introduce(self, process: _BlockProcess) -> None:
        """Tell a process which block to make."""
        share = worker.Share(self._job.make_block, self._layout, process.share, process.index)
        for module in file_modules():  # another process cannot import these by name
            cloudpickle.register_pickle_by_value(module)
        process.write([path for path in sys.path if path])
        process.write(cloudpickle.dumps(share))
        with contextlib.suppress(OSError):
            process.line.send_fd(self._memory.fd)

    def _tell(self, command: Callable[[slice], Command]) -> None:
        for process in self._processes:
            process.write(command(process.share))

    def _answers(self) -> list[Any]:
        return self._answers_of(self._processes, self._job.timeout)

    def _answers_of(self, processes: Sequence[_BlockProcess], seconds: float) -> list[Any]:
        return [self._content(x.share, answer) for x, answer in self._heard(processes, seconds)]

    def _heard(
        self, processes: Sequence[_BlockProcess], seconds: float
    ) -> list[tuple[_BlockProcess, Any]]:
        """Return each process with its answer, or with an error that says why it gave none."""
        answers: dict[int, Any] = {}
        waiting = {process.line.fileno(): process for process in processes}
        poll = select.poll()
        for fd in waiting:
            poll.register(fd, select.POLLIN)
        deadline = time.monotonic() + seconds
        while waiting and (left := deadline - time.monotonic()) > 0:
            ready = [fd for fd, _ in poll.poll(1000 * min(left, LOOK_SECONDS))]
            # The end of a process closes its socket, which `poll` reports. If a process that it
            # forked holds the socket open, only this check notices the end.
            gone = [] if ready else [fd for fd, x in waiting.items() if x.child.poll()]
            for fd in ready + gone:
                poll.unregister(fd)
                process = waiting.pop(fd)
                answer = self._read(process) if ready else self._how_it_ended(process)
                answers[process.index] = answer
        for process in waiting.values():
            process.child.kill(0.0)
            answers[process.index] = self._lost(process, f"did not answer within {seconds:g} s.")
        return [(process, answers[process.index]) for process in processes]

    def _read(self, process: _BlockProcess) -> Any:
        try:
            return self._content(process.share, process.line.read())
        except EOFError:
            return self._how_it_ended(process)

    def _restart(self, process: _BlockProcess, lost: _Lost, before: list[np.ndarray]) -> None:
        """Replace a lost process and its environments, whose episodes end as truncated.

        If `on_death` is `fail`, raise `lost` instead.
        """
        if self._job.on_death == "fail":
            raise lost
        self.restarts += 1
        warnings.warn(f"{lost}\nIt is started again, and its episodes are truncated.", stacklevel=5)
        process.line.close()
        process.child.kill(KILL_SECONDS)
        of = process.share
        new = self._processes[process.index] = self._start(process.index, of)
        self._introduce(new)
        # New seeds, because the old ones could lead to the same failure.
        sequences = [np.random.SeedSequence([int(x), self.restarts]) for x in self._seeds[of]]
        new.write(("reset", [int(sequence.generate_state(1)[0]) for sequence in sequences]))
        for _ in ("made", "reset"):
            self._answers_of([new], self._open_seconds)
        # The last step gave no results, so the episodes end with the observations before that step.
        for final, seen in zip(self._shared.final, before, strict=True):
            final[of] = seen[of]
        self._shared.reward[of] = 0.0
        self._shared.terminated[of] = False
        self._shared.truncated[of] = True

    def _how_it_ended(self, process: _BlockProcess) -> _Lost:
        """Return the error for a process that ended or closed its connection without an answer."""
        process.child.wait(GRACE_SECONDS)
        ended = process.child.poll()
        how = f"is gone: {last_words(*ended)}" if ended else "stopped answering."
        return self._lost(process, how)

    def _lost(self, process: _BlockProcess, what: str) -> _Lost:
        first, last = process.share.start, process.share.stop - 1
        which = f"environment {first}" if first == last else f"environments {first} to {last}"
        at = first + int(self._at[process.index])
        return _Lost(
            f"the worker process of {which} of `{self._job.name}`, "
            f"which was working on environment {at}, {what}"
        )

    def _end(self) -> None:
        self._finish()


def _end(processes: list[_BlockProcess], memory: MemoryFile) -> None:
    """End every process, by force if it does not end soon."""
    for process in processes:
        process.write(("close",))
        process.line.close()
    end_all([process.child for process in processes], GRACE_SECONDS)
    processes.clear()
    memory.close()
