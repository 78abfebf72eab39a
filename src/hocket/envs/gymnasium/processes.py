"""Gymnasium environments in worker processes, which share memory that has no name."""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import time
import warnings
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import numpy as np

from hocket.envs.gymnasium.block import EnvFault, Job, Rows
from hocket.envs.gymnasium.worker import DONE, STEP, Share, SharedMemory
from hocket.envs.host import OPEN_SECONDS, HostEnvError, HostStep
from hocket.system.names import file_modules

GRACE_SECONDS = 2.0


@dataclass
class _Worker:
    index: int
    share: slice
    popen: subprocess.Popen[bytes]
    connection: Connection


class Processes:
    """Live environments whose blocks are stepped by processes; one wake-up each way per step."""

    def __init__(self, job: Job, num_envs: int) -> None:
        if sys.platform != "linux":
            raise ValueError('vectorize="processes" needs Linux. Use vectorize="threads".')
        self._job, self._num_envs = job, num_envs
        self._failure: HostEnvError | None = None
        self.restarts = 0
        """How many workers were started again, because they died or hung."""
        shares = job.shares(num_envs)
        self._layout = SharedMemory(job.observations, job.actions, num_envs, len(shares))
        # Without a name: it goes with the last process that has it open, however that ends.
        self._fd = os.memfd_create("hocket-envs")
        os.ftruncate(self._fd, self._layout.nbytes)
        memory = mmap.mmap(self._fd, self._layout.nbytes)
        self._actions, self._rows, self._at = self._layout.arrays(memory)
        self._seen = job.observations.empty(num_envs)
        self._seeds = np.zeros(num_envs, np.uint32)
        self._workers: list[_Worker] = []
        self._end = weakref.finalize(self, _end, self._workers, self._fd, os.getpid())
        with self._or_end():
            self._workers += [self._start(i, share) for i, share in enumerate(shares)]
            for worker in self._workers:
                self._told(worker)
            self._answers(max(OPEN_SECONDS, job.timeout))

    def reset(self, seeds: np.ndarray) -> Any:
        self._seeds = np.array(seeds, np.uint32)
        with self._or_end():
            for worker in self._workers:
                self._ask(worker, "reset", self._seeds[worker.share].tolist())
            self._answers()
        return self._job.observations.tree(self._copied_obs())

    def send(self, actions: Any) -> None:
        with self._or_end():
            for shared, given in zip(self._actions, self._job.actions.arrays(actions), strict=True):
                shared[:] = given
            for worker in self._workers:
                self._write(worker, STEP)

    def recv(self) -> HostStep:
        with self._or_end():
            before = self._seen
            lost = self._wait(self._job.timeout)
            for worker, reason in lost:
                self._restart(worker, reason, before)
            rows = Rows.new(self._job.observations, self._num_envs)
            for mine, shared in zip(rows[1:4], self._rows[1:4], strict=True):
                mine[:] = shared
            done = rows.terminated | rows.truncated
            for mine, shared in zip(rows.final, self._rows.final, strict=True):
                mine[done] = shared[done]
            return rows._replace(obs=self._copied_obs()).result(self._job.observations)

    def snapshot(self) -> list[bytes] | None:
        with self._or_end():
            for worker in self._workers:
                self._ask(worker, "snapshot")
            found = self._answers()
        return None if None in found else [state for states in found for state in states]

    def restore(self, snapshots: list[bytes]) -> None:
        with self._or_end():
            for worker in self._workers:
                self._ask(worker, "restore", snapshots[worker.share])
            self._answers()

    def close(self) -> None:
        self._failure = self._failure or HostEnvError(f"`{self._job.name}` is closed.")
        self._end()

    def _copied_obs(self) -> list[np.ndarray]:
        """The observations in new arrays; remembered, for environments that die."""
        self._seen = self._job.observations.empty(self._num_envs)
        for mine, shared in zip(self._seen, self._rows.obs, strict=True):
            mine[:] = shared
        return self._seen

    def _start(self, index: int, share: slice) -> _Worker:
        mine, theirs = socket.socketpair()
        with theirs:
            fds = (theirs.fileno(), self._fd)
            command = ["-m", "hocket.envs.gymnasium.worker", *map(str, fds), str(os.getpid())]
            popen = subprocess.Popen(
                [sys.executable, *command],
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                # An environment may use JAX: the accelerator is for those who train.
                env={"JAX_PLATFORMS": "cpu", **os.environ},
                start_new_session=True,  # Ctrl-C is not for them
            )
        return _Worker(index, share, popen, Connection(mine.detach()))

    def _told(self, worker: _Worker) -> None:
        """Say what it runs."""
        share = Share(self._job.make_block, self._layout, worker.share, worker.index)
        for module in file_modules():  # no other process can import them by name
            cloudpickle.register_pickle_by_value(module)
        self._write(worker, pickle.dumps([path for path in sys.path if path]))
        self._write(worker, cloudpickle.dumps(share))

    def _write(self, worker: _Worker, message: bytes) -> None:
        """Also where it is gone: then its answer is missing, and that says how it ended."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            worker.connection.send_bytes(message)

    def _ask(self, worker: _Worker, name: str, argument: Any = None) -> None:
        self._write(worker, pickle.dumps((name, argument)))

    def _answers(self, timeout: float | None = None) -> list[Any]:
        """An answer of each worker to a command that is not a step."""
        found: dict[int, Any] = {}
        for worker, reason in self._wait(timeout or self._job.timeout, found):
            raise self._lost(worker, reason)
        return [found[worker.index] for worker in self._workers]

    def _wait(
        self, timeout: float, found: dict[int, Any] | None = None
    ) -> list[tuple[_Worker, str]]:
        """Wait for an answer of each worker; those that will give none, and why."""
        lost: list[tuple[_Worker, str]] = []
        waiting = {worker.connection.fileno(): worker for worker in self._workers}
        poll = select.poll()
        for fd in waiting:
            poll.register(fd, select.POLLIN)
        deadline = time.monotonic() + timeout
        while waiting:
            ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
            for fd, _ in ready:
                poll.unregister(fd)
                worker = waiting.pop(fd)
                try:
                    answer = worker.connection.recv_bytes()
                except (EOFError, ConnectionResetError):
                    lost.append((worker, _epitaph(worker)))
                    continue
                if answer != DONE:
                    self._keep(worker, pickle.loads(answer), found)
            if not ready and time.monotonic() >= deadline:
                for worker in waiting.values():
                    worker.popen.kill()
                    lost.append((worker, f"did not answer within {timeout:g} s"))
                break
        return lost

    def _keep(self, worker: _Worker, answer: Any, found: dict[int, Any] | None) -> None:
        if isinstance(answer, EnvFault):
            number = None if answer.number is None else worker.share.start + answer.number
            raise self._job.error(number, answer.text)
        if found is not None:
            found[worker.index] = answer

    def _restart(self, worker: _Worker, reason: str, before: list[np.ndarray]) -> None:
        """Put new environments in the place of those that are lost; their episodes end here."""
        lost = self._lost(worker, reason)
        if self._job.on_death == "fail":
            raise lost
        self.restarts += 1
        warnings.warn(f"{lost} It is started again, and their episodes are cut.", stacklevel=4)
        _kill(worker)
        of = worker.share
        new = self._workers[worker.index] = self._start(worker.index, of)
        self._told(new)
        # Other seeds than at first: those could lead to the same end.
        seeds = [[int(seed), self.restarts] for seed in self._seeds[of]]
        fresh = [int(np.random.SeedSequence(pair).generate_state(1)[0]) for pair in seeds]
        self._ask(new, "reset", fresh)
        for _ in ("made", "reset"):
            self._answer_of(new)
        for final, seen in zip(self._rows.final, before, strict=True):
            final[of] = seen[of]
        self._rows.reward[of] = 0.0
        self._rows.terminated[of] = False
        self._rows.truncated[of] = True

    def _answer_of(self, worker: _Worker) -> None:
        timeout = max(OPEN_SECONDS, self._job.timeout)
        if not worker.connection.poll(timeout):
            raise self._lost(worker, f"did not answer within {timeout:g} s")
        try:
            self._keep(worker, pickle.loads(worker.connection.recv_bytes()), None)
        except (EOFError, ConnectionResetError):
            raise self._lost(worker, _epitaph(worker)) from None

    def _lost(self, worker: _Worker, reason: str) -> HostEnvError:
        first, last = worker.share.start, worker.share.stop - 1
        which = f"environment {first}" if first == last else f"environments {first} to {last}"
        at = first + int(self._at[worker.index])
        return HostEnvError(
            f"the worker process of {which} of `{self._job.name}` {reason}; it was at environment "
            f"{at}."
        )

    @contextlib.contextmanager
    def _or_end(self) -> Iterator[None]:
        """Within, any failure ends all processes; environments that failed stay failed."""
        if self._failure:
            raise self._failure
        try:
            yield
        except HostEnvError as error:
            self._failure = error
            self._end()
            raise


def _epitaph(worker: _Worker) -> str:
    """How a process ended that said nothing."""
    try:
        code = worker.popen.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        return "stopped answering"
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


def _kill(worker: _Worker) -> None:
    worker.connection.close()
    worker.popen.kill()
    worker.popen.wait()


def _end(workers: list[_Worker], fd: int, owner: int) -> None:
    """Let every process end, by force where it does not at once."""
    if os.getpid() != owner:  # a fork of the process that they belong to
        return
    for worker in workers:
        with contextlib.suppress(OSError):
            worker.connection.send_bytes(pickle.dumps(("close", None)))
        worker.connection.close()
    deadline = time.monotonic() + GRACE_SECONDS
    for worker in workers:
        try:
            worker.popen.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            _kill(worker)
    workers.clear()
    os.close(fd)
