"""The instances of a plan as processes of this machine, which share memory that has no name."""

from __future__ import annotations

import contextlib
import selectors
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import cloudpickle
import jax
import numpy as np

from hocket.core.describe import file_modules
from hocket.core.plan import Plan
from hocket.errors import PlanError
from hocket.runtime import wire
from hocket.runtime.arena import Arena
from hocket.runtime.health import InstanceError, Watch
from hocket.runtime.host_arrays import from_host, to_host
from hocket.runtime.layout import delay_of, layout
from hocket.runtime.shared_pipe import SharedMemory
from hocket.runtime.status import names, new_statuses
from hocket.runtime.timeline import Span
from hocket.runtime.worker import Job

LOOK_SECONDS = 0.2
"""How often somebody looks whether the instances go on."""
GRACE_SECONDS = 1.0
"""What the others get to come to an end after one has failed, so that the first cause is told."""


@dataclass
class _Process:
    name: str
    popen: subprocess.Popen[bytes]
    connection: socket.socket


class Processes:
    """A process for each instance; none is started before there is a state to begin with."""

    def __init__(self, plan: Plan) -> None:
        if sys.platform != "linux":
            raise PlanError('launch="processes" needs Linux. Use launch="threads".')
        self.plan = plan
        self._layout = layout(plan)
        self._arena = Arena.create(self._layout.nbytes)
        self.statuses = new_statuses(plan, self._arena.memory, self._layout.statuses)
        self._processes: list[_Process] = []
        self._failure: BaseException | None = None
        # Whatever becomes of this object or of Python, no process stays behind.
        self._end = weakref.finalize(self, _end, self._processes)

    @property
    def is_well(self) -> bool:
        return self._failure is None and bool(self._processes)

    def load(self, leaves: Mapping[int, Any]) -> None:
        if not self._processes:
            with self._or_end():
                self._start()
        for link, offset in self._layout.pipes:
            SharedMemory(self._arena, offset, link, delay_of(self.plan, link)).empty()
        home = self.plan.projection.placement.home
        host = {v: to_host(x) for v, x in leaves.items()}
        wanted = [
            ("load", {v: x for v, x in host.items() if home[v] == place})
            for place, _ in names(self.plan)
        ]
        self._ask_each(wanted)

    def held(self) -> list[dict[int, Any]]:
        values = self.plan.graph.values
        return [
            {v: jax.numpy.asarray(from_host(x, values[v])) for v, x in held.items()}
            for held in self._ask("held")
        ]

    def run(self, count: int) -> list[dict[int, np.ndarray]]:
        return self._ask("run", count)

    def record(self) -> None:
        self._ask("record")

    def spans(self) -> tuple[list[Span], int]:
        found = self._ask("spans")
        return [span for spans, _ in found for span in spans], sum(left for _, left in found)

    def close(self) -> None:
        self._end()

    def _start(self) -> None:
        for module in file_modules():
            cloudpickle.register_pickle_by_value(module)
        algorithm = cloudpickle.dumps(self.plan.graph.algorithm)
        config = {
            name: value
            for name, value in jax.config.values.items()
            if isinstance(value, (bool, int, float, str))
        }
        for place, index in names(self.plan):
            mine, theirs = socket.socketpair()
            with theirs:
                popen = subprocess.Popen(
                    [
                        sys.executable, "-m", "hocket.runtime.worker",
                        str(theirs.fileno()), str(self._arena.fd),
                    ],
                    pass_fds=(theirs.fileno(), self._arena.fd),
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C is not for them
                )  # fmt: skip
            self._processes.append(_Process(f"{place}/{index}", popen, mine))
            job = Job(
                place, index, self.plan.to_json(), self.plan.graph.digest, self.plan.graph.num_envs,
                self.plan.graph.exact, self._arena.nbytes, algorithm, config,
            )  # fmt: skip
            wire.write(mine, sys.path)
            wire.write(mine, job)
        self._answers()

    def _ask(self, *command: Any) -> list[Any]:
        return self._ask_each([command] * len(self._processes))

    def _ask_each(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        with self._or_end():
            for process, command in zip(self._processes, commands, strict=True):
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    wire.write(process.connection, command)
            return self._answers()

    @contextlib.contextmanager
    def _or_end(self) -> Iterator[None]:
        """Within, any failure ends all processes; a run that failed stays failed."""
        if self._failure:
            raise self._failure
        try:
            yield
        except BaseException as error:
            self._failure = error
            self._end()
            raise

    def _answers(self) -> list[Any]:
        """An answer of each instance; the first failure ends all of them, and is raised."""
        answers: dict[str, Any] = {}
        watch = Watch(self.plan, self.statuses)
        with selectors.DefaultSelector() as selector:
            for process in self._processes:
                selector.register(process.connection, selectors.EVENT_READ, process)
            while len(answers) < len(self._processes):
                for key, _ in selector.select(LOOK_SECONDS):
                    process: _Process = key.data
                    answers[process.name] = self._answer(process)
                    selector.unregister(process.connection)
                watch.look()
        return [answers[process.name] for process in self._processes]

    def _answer(self, process: _Process) -> Any:
        try:
            outcome, content = wire.read(process.connection)
        except EOFError:
            raise InstanceError(_epitaph(process)) from None
        if outcome == "done":
            return content
        raise InstanceError(f"the instance `{process.name}` failed:\n{content}")


def _epitaph(process: _Process) -> str:
    """How a process ended that said nothing."""
    try:
        code = process.popen.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        return f"the instance `{process.name}` (process {process.popen.pid}) stopped answering."
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    hint = " Was there enough memory?" if code == -signal.SIGKILL else ""
    return f"the instance `{process.name}` failed: process {process.popen.pid} {how}.{hint}"


def _end(processes: list[_Process]) -> None:
    """Let every process end, by force where it does not at once."""
    for process in processes:
        with contextlib.suppress(OSError):
            wire.write(process.connection, ("end",))
        process.connection.close()
    deadline = time.monotonic() + GRACE_SECONDS
    for process in processes:
        try:
            process.popen.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.popen.kill()
            process.popen.wait()
    processes.clear()
