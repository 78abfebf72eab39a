"""Does a way to average keep its contract? Replicas as processes, which no launcher starts."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from hocket.cluster.devices import usable_cores
from hocket.cluster.slices import Slices, changed
from hocket.errors import ContractError
from hocket.runtime.averaging import Members
from hocket.runtime.averaging.known import choices, find_way, pages, roomy
from hocket.system.shared_memory import Arena
from hocket.testing import replica
from hocket.testing.replica import SITES, SMALL, TURNS, Job, expected_means

SECONDS = 120.0
"""What replicas get for whatever they are told to do; most of it is starting and compiling."""
WAITING_SECONDS = 30.0
"""What a replica gets to see that another one has ended, or that it is closed itself."""
EPOCHS = 5


@dataclass(frozen=True)
class AverageCheck:
    """What `check_average` found."""

    name: str
    replicas: int
    room: int
    """The bytes of shared memory that it took."""
    difference: float
    """How far a mean was from NumPy's, relative where it exceeds one; in a narrow type, in steps
    of that type."""
    seconds: Mapping[str, float]
    """How long it took a replica to see that another one was gone."""

    def __str__(self) -> str:
        exact = "bit for bit" if not self.difference else f"to {self.difference:.2g}"
        ends = ", ".join(f"{what} after {x:.2f} s" for what, x in self.seconds.items())
        return (
            f"ok: `{self.name}` gives {self.replicas} replicas the same bits, and NumPy's means "
            f"{exact}; waits end {ends}"
        )


def check_average(
    name: str, on: Sequence[str] = ("cpu:0", "cpu:0"), *, tolerance: float = 1e-6
) -> AverageCheck:
    """Verify a way to average, named as `Mean(way=...)` is, by processes that use it.

    There is one process for each device or slice in `on`. They listen and join, average arrays of
    several types and sizes in one compiled program, twice, and must all get the same bits, which
    are NumPy's means up to `tolerance`. They do so again, freshly joined, as after a trial. Other
    sizes in one replica must be an error; and where a replica leaves or is killed, the others must
    not wait for ever.

        print(check_average("mine.py:Fifo"))
    """
    members = Members(tuple(on))
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
    """The memory of a way, which must say why it cannot go where it needs some and has none."""
    choices(members, name)
    way = find_way(name)
    room = way.room(members, roomy(SITES))
    if type(room) is not int or room < 0:
        raise ContractError(f"`{name}` has room {room!r}: it must be a number of bytes, or 0.")
    if type(way.preference) is not int:
        raise ContractError(f"`{name}` has preference {way.preference!r}: it must be an int.")
    if room and not way.why_not(replace(members, shares_memory=False)):
        raise ContractError(
            f"`{name}` takes {room} bytes of shared memory, and does not say so where there is "
            f"none: `why_not` must, where `members.shares_memory` is False."
        )
    return room


class _Process(NamedTuple):
    popen: subprocess.Popen[bytes]
    connection: Connection


@contextmanager
def _started(name: str, members: Members, room: int) -> Iterator[_Group]:
    """A process for each replica; whatever becomes of them, none stays."""
    arena = Arena.create(max(4096, EPOCHS * pages(room)))
    slices, processes = Slices(members.names), list[_Process]()
    threads = str(max(1, usable_cores() // len(members)))
    usual = {"PJRT_NPROC": threads, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ}
    if members.on_cpu:
        usual["JAX_PLATFORMS"] = "cpu"
    try:
        for device in members.names:
            processes.append(_spawn(arena, changed(usual, slices.env(device))))
        for index, process in enumerate(processes):
            job = Job(name, members, index, room, arena.nbytes, sys.path)
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
        arena.close()


def _spawn(arena: Arena, environment: Mapping[str, str]) -> _Process:
    mine, theirs = socket.socketpair()
    fds = theirs.fileno(), arena.fd
    with theirs:
        popen = subprocess.Popen(
            [sys.executable, "-m", replica.__name__, *map(str, fds)],
            pass_fds=fds,
            env=environment,
            stdin=subprocess.DEVNULL,
        )
    return _Process(popen, Connection(mine.detach()))


class _Group:
    """All replicas, seen from the process that started them."""

    def __init__(self, name: str, processes: Sequence[_Process]) -> None:
        self._name, self._processes = name, list(processes)

    def ask(self, command: str, *arguments: Any) -> list[Any]:
        for process in self._processes:
            process.connection.send((command, *arguments))
        return self.answers(command)

    def answers(self, what: str, seconds: float = SECONDS) -> list[Any]:
        """One of each replica, in time."""
        deadline, found = time.monotonic() + seconds, list[Any]()
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
            found.append(content)
        return found

    def come_together(self, epoch: int) -> None:
        """In both phases, with memory of this epoch's own."""
        self.ask("join", self.ask("listen", epoch), epoch)

    def average(self, tolerance: float) -> float:
        """How far the means of all replicas are from NumPy's."""
        found, count = self.ask("means"), len(self._processes)
        for index, (made, counts) in enumerate(found):
            if any(a.tobytes() != b.tobytes() for a, b in zip(made, found[0][0], strict=True)):
                raise ContractError(
                    f"`{self._name}`: replica {index} got other bits than replica 0, so that the "
                    f"replicas would drift apart."
                )
            if counts[0] < 2 * (len(SITES) - 2 + TURNS):  # one site has nothing to send
                raise ContractError(f"`{self._name}` counts {counts[0]} calls.")
        expected = expected_means(count)
        apart = [_apart(a, b) for a, b in zip(found[0][0], expected, strict=True)]
        if max(apart) > tolerance:
            worst = expected[apart.index(max(apart))]
            raise ContractError(
                f"`{self._name}`: a mean of {worst.dtype}{list(worst.shape)} is {max(apart):.2g} "
                f"from NumPy's (allowed: {tolerance:.2g})."
            )
        return max(apart)

    def differ(self) -> None:
        """Replicas that average arrays of different sizes must not be given a mean of them."""
        for index, process in enumerate(self._processes):
            process.connection.send(("wait", SMALL[0].size - index))
        errors = self.answers("wait for replicas with arrays of other sizes", WAITING_SECONDS)
        if not all(errors):
            raise ContractError(f"`{self._name}` averages arrays of different sizes.")

    def leave(self) -> float:
        """The last replica closes; how long it takes until none of the others waits any more."""
        *others, last = self._processes
        self._wait(others)
        last.connection.send(("leave",))
        start = time.monotonic()
        *errors, _ = self.answers("wait for a replica that has left", WAITING_SECONDS)
        self._must_be_errors(errors, "has left")
        return time.monotonic() - start

    def kill(self) -> float:
        """The same where the last one is killed, and the others are closed as a run does it."""
        *self._processes, last = self._processes
        self._wait(self._processes)
        last.popen.send_signal(signal.SIGKILL)
        last.popen.wait()
        start = time.monotonic()
        for process in self._processes:
            process.connection.send(("close",))
        errors = self.answers("wait for a replica that was killed", WAITING_SECONDS)
        self._must_be_errors(errors, "was killed")
        return time.monotonic() - start

    def _wait(self, processes: Sequence[_Process]) -> None:
        for process in processes:
            process.connection.send(("wait", SMALL[0].size))
        time.sleep(0.5)  # most likely they wait by then; a wait that begins later must end as well

    def _must_be_errors(self, errors: Sequence[str], why: str) -> None:
        if not all(errors):
            raise ContractError(f"`{self._name}` makes a mean without a replica that {why}.")


def _apart(found: np.ndarray, expected: np.ndarray) -> float:
    """How far two arrays are apart: of a narrow type, where they differ by more than a step."""
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return float("inf")
    wide = np.complex128 if np.iscomplexobj(expected) else np.float64
    a, b = found.astype(wide), expected.astype(wide)
    step = float(jnp.finfo(expected.dtype).eps) if expected.dtype.itemsize < 4 else 0.0
    apart = np.abs(a - b) / np.maximum(1.0, np.abs(b))
    return float(np.max(np.where(apart <= step, 0.0, apart), initial=0.0))
