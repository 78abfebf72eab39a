"""The conformance kit for ways to average. It starts replicas as processes, without a launcher."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from hocket.cluster.slices import Slices, changed
from hocket.core.plan.device_id import DeviceId, device_ids
from hocket.errors import ContractError
from hocket.runtime.averaging import Members
from hocket.runtime.averaging.known import choices, find_way, roomy
from hocket.system.cores import usable_cores
from hocket.system.network import get_network
from hocket.system.platforms import HOST
from hocket.system.shared_memory import MemoryFile, pages
from hocket.testing import replica
from hocket.testing.replica import SITES, SMALL, TURNS, Job, expected_means

SECONDS = 120.0
"""The time limit in seconds for a command to the replicas, which may have to start and compile."""
WAITING_SECONDS = 30.0
"""The time limit in seconds for replicas to stop waiting for an average that cannot be made."""
EPOCHS = 5


@dataclass(frozen=True)
class AverageCheck:
    """The results of `check_average`."""

    name: str
    replicas: int
    room: int
    """The bytes of shared memory that this way to average needs."""
    difference: float
    """The largest difference from NumPy's means, relative for values above one. In types narrower
    than 32 bits, a difference of one rounding step does not count."""
    seconds: Mapping[str, float]
    """The seconds that other replicas took to notice that one had ended, for each way to end it."""

    def __str__(self) -> str:
        exact = "bit for bit" if not self.difference else f"to {self.difference:.2g}"
        ends = ", ".join(f"{what} after {x:.2f} s" for what, x in self.seconds.items())
        return (
            f"ok: `{self.name}` gives {self.replicas} replicas the same bits, and NumPy's means "
            f"{exact}; waits end {ends}"
        )


def check_average(
    name: str, on: Iterable[DeviceId | str] = ("cpu:0", "cpu:0"), *, tolerance: float = 1e-6
) -> AverageCheck:
    """Verify that a way to average keeps its contract. Its `name` is as in `Mean(way=...)`.

        print(check_average("mine.py:Fifo"))

    Each device or slice in `on` gets a process, which is one replica. The replicas connect to each
    other, and average arrays of several types and sizes in one compiled program, which runs twice.
    All must get the same bits, within `tolerance` of NumPy's means. They free their resources, and
    do all of this once more. If replicas have arrays of different sizes, each must get an error. If
    a replica leaves or is killed, the others must stop waiting.
    """
    members = Members(device_ids(on))
    room = _checked(name, members)
    with _started(name, members, room) as group:
        difference = 0.0
        for epoch in range(2):
            group.come_together(epoch)
            difference = max(difference, group.average(tolerance))
            group.ask("free")
        group.come_together(2)
        group.differ()
        group.come_together(3)
        seconds = {"where one leaves": group.leave()}
        group.come_together(4)
        seconds["where one is killed and the others are closed"] = group.kill()
    return AverageCheck(name, len(members), room, difference, seconds)


def _checked(name: str, members: Members) -> int:
    """Check the properties of a way to average. Return the bytes of shared memory that it needs."""
    choices(members, name)
    way = find_way(name)
    room = way.room(members, roomy(SITES))
    if type(room) is not int or room < 0:
        raise ContractError(
            f"`room` of `{name}` returned {room!r}: it must be a number of bytes, or 0."
        )
    if type(way.preference) is not int:
        raise ContractError(f"`preference` of `{name}` is {way.preference!r}: it must be an int.")
    if room and not way.why_not(replace(members, shares_memory=False)):
        raise ContractError(
            f"`{name}` takes {room} bytes of shared memory, but does not refuse to run where there "
            f"is none: `why_not` must give a reason if `members.shares_memory` is False."
        )
    return room


class _Process(NamedTuple):
    popen: subprocess.Popen[bytes]
    connection: Connection


@contextmanager
def _started(name: str, members: Members, room: int) -> Iterator[_Group]:
    """Start a process for each replica, and end them all on leaving the context."""
    file = MemoryFile.create(max(4096, EPOCHS * pages(room)))
    slices, processes = Slices(filter(None, members.on)), list[_Process]()
    threads = str(max(1, usable_cores() // len(members)))
    usual = {"PJRT_NPROC": threads, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ}
    usual |= {"JAX_PLATFORMS": HOST} if members.on_host else {}
    try:
        for device in filter(None, members.on):
            processes.append(_spawn(file, changed(usual, slices.env(device))))
        for index, process in enumerate(processes):
            job = Job(name, members, index, room, file.nbytes, sys.path, get_network())
            process.connection.send(job)
        group = _Group(name, processes)
        group.answers("start")
        yield group
    finally:
        for process in processes:
            process.popen.kill()
            process.popen.wait()
            process.connection.close()
        slices.close()
        file.close()


def _spawn(file: MemoryFile, environment: Mapping[str, str]) -> _Process:
    mine, theirs = socket.socketpair()
    fds = theirs.fileno(), file.fd
    with theirs:
        popen = subprocess.Popen(
            [sys.executable, "-m", replica.__name__, *map(str, fds)],
            pass_fds=fds,
            env=environment,
            stdin=subprocess.DEVNULL,
        )
    return _Process(popen, Connection(mine.detach()))


class _Group:
    """The connections to all replicas, on the side of the process that commands them."""

    def __init__(self, name: str, processes: Sequence[_Process]) -> None:
        self._name, self._processes = name, list(processes)

    def ask(self, command: str, *arguments: Any) -> list[Any]:
        for process in self._processes:
            process.connection.send((command, *arguments))
        return self.answers(command)

    def answers(self, what: str, seconds: float = SECONDS) -> list[Any]:
        """Wait for an answer of each replica."""
        deadline, answers = time.monotonic() + seconds, list[Any]()
        for index, process in enumerate(self._processes):
            if not process.connection.poll(max(0.0, deadline - time.monotonic())):
                raise ContractError(
                    f"`{self._name}`: replica {index} still does `{what}` after {seconds:g} s."
                )
            try:
                outcome, content = process.connection.recv()
            except (EOFError, ConnectionResetError):
                code = process.popen.wait()
                raise ContractError(
                    f"`{self._name}`: replica {index} ended with code {code} while it did `{what}`."
                ) from None
            if outcome != "done":
                raise ContractError(f"`{self._name}`: replica {index} failed:\n{content}")
            answers.append(content)
        return answers

    def come_together(self, epoch: int) -> None:
        """Connect all replicas. Every epoch has its own part of the shared memory."""
        self.ask("join", self.ask("listen", epoch), epoch)

    def average(self, tolerance: float) -> float:
        """Return how far the means of all replicas are from NumPy's."""
        answers = self.ask("means")
        first, _ = answers[0]
        for index, (means, counts) in enumerate(answers):
            if any(a.tobytes() != b.tobytes() for a, b in zip(means, first, strict=True)):
                raise ContractError(
                    f"`{self._name}`: replica {index} got different bits than replica 0, so the "
                    f"replicas would drift apart."
                )
            # The program runs twice. Each run calls the loop's site `TURNS` times, and every other
            # site once. The site with an empty array need not count: it has nothing to average.
            if counts[0] < 2 * (len(SITES) - 2 + TURNS):
                raise ContractError(
                    f"`{self._name}` counts only {counts[0]} calls: `counts` must include every "
                    f"call from a compiled program."
                )
        expected = expected_means(len(answers))
        apart = [_apart(a, b) for a, b in zip(first, expected, strict=True)]
        if max(apart) > tolerance:
            worst = expected[apart.index(max(apart))]
            raise ContractError(
                f"`{self._name}`: a mean of {worst.dtype}{list(worst.shape)} is {max(apart):.2g} "
                f"from NumPy's (allowed: {tolerance:.2g})."
            )
        return max(apart)

    def differ(self) -> None:
        """Check that replicas with arrays of different sizes get errors, not a mean."""
        for index, process in enumerate(self._processes):
            process.connection.send(("wait", SMALL[0].size - index))
        errors = self.answers("wait for replicas with arrays of other sizes", WAITING_SECONDS)
        self._must_be_errors(errors, "averages arrays of different sizes")

    def leave(self) -> float:
        """Have the last replica leave. Return the seconds until the others stop waiting for it."""
        *others, last = self._processes
        self._wait(others)
        last.connection.send(("leave",))
        start = time.monotonic()
        *errors, _ = self.answers("wait for a replica that has left", WAITING_SECONDS)
        self._must_be_errors(errors, "makes a mean without a replica that has left")
        return time.monotonic() - start

    def kill(self) -> float:
        """Kill the last replica, and close the others. Return the seconds until their waits end."""
        *self._processes, last = self._processes
        self._wait(self._processes)
        last.popen.send_signal(signal.SIGKILL)
        last.popen.wait()
        start = time.monotonic()
        for process in self._processes:
            process.connection.send(("close",))
        errors = self.answers("wait for a replica that was killed", WAITING_SECONDS)
        self._must_be_errors(errors, "makes a mean without a replica that was killed")
        return time.monotonic() - start

    def _wait(self, processes: Sequence[_Process]) -> None:
        for process in processes:
            process.connection.send(("wait", SMALL[0].size))
        # By now the replicas most likely wait. If one is late, its wait must end just the same.
        time.sleep(0.5)

    def _must_be_errors(self, errors: Sequence[str], mistake: str) -> None:
        if not all(errors):
            raise ContractError(f"`{self._name}` {mistake}.")


def _apart(mean: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference between a mean and its expected value.

    In types narrower than 32 bits, a difference of one rounding step does not count.
    """
    if mean.dtype != expected.dtype or mean.shape != expected.shape:
        return float("inf")
    wide = np.complex128 if np.iscomplexobj(expected) else np.float64
    a, b = mean.astype(wide), expected.astype(wide)
    step = float(jnp.finfo(expected.dtype).eps) if expected.dtype.itemsize < 4 else 0.0
    apart = np.abs(a - b) / np.maximum(1.0, np.abs(b))
    return float(np.max(np.where(apart <= step, 0.0, apart), initial=0.0))
