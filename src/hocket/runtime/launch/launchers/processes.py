"""The instances of a plan as processes of this machine, which share memory that has no name."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from hocket.cluster.devices import usable_cores
from hocket.cluster.slices import Slices, changed, device_of
from hocket.core.plan.data import Place, Plan
from hocket.errors import PlanError
from hocket.runtime.averaging import Members
from hocket.runtime.averaging.choice import Reduction
from hocket.runtime.averaging.table import Table, choose, only
from hocket.runtime.channels.host_arrays import from_host, to_host
from hocket.runtime.channels.links import late_specs
from hocket.runtime.host_calls.services import Services
from hocket.runtime.launch import rpc
from hocket.runtime.launch.leaving import FINISH_SECONDS
from hocket.runtime.launch.memory_map import layout, shared_board, shared_latest
from hocket.runtime.launch.shipping import pack
from hocket.runtime.launch.watch import GRACE_SECONDS, LOOK_SECONDS, InstanceError, Watch
from hocket.runtime.launch.worker import Job
from hocket.runtime.observe.status import WORKING, counting, names, new_statuses
from hocket.runtime.observe.timeline import Span
from hocket.system.native import library
from hocket.system.shared_memory import Arena

CLOSING_SECONDS = 0.02
"""What it takes a kernel that waits to see that there is nobody to wait for."""


@dataclass
class _Process:
    name: str
    popen: subprocess.Popen[bytes]
    connection: socket.socket

    @property
    def place(self) -> str:
        return self.name.rpartition("/")[0]


class Processes:
    """A process for each instance; none is started before there is a state to begin with."""

    def __init__(self, plan: Plan) -> None:
        if sys.platform != "linux":
            raise PlanError('launch="processes" needs Linux. Use launch="threads".')
        self.plan = plan
        self._layout = layout(plan)
        self._arena = Arena.create(self._layout.nbytes)
        self.statuses = new_statuses(plan, self._arena.memory, self._layout.statuses)
        self.board = shared_board(plan, self._arena.memory, self._layout)
        self._processes: list[_Process] = []
        self.slices = Slices(device for place in plan.places for device in place.on)
        self.reductions: dict[str, Table] = {}
        """By place that averages: which way was chosen, and what each costs."""
        self._groups: list[int] = []
        """Where in the arena groups begin that average."""
        self._at_work: set[str] = set()
        """Those who run, of a free channel, until they are told to stop."""
        self._failure: BaseException | None = None
        self._epoch = 0
        # Whatever becomes of this object or of Python, no process and no memory stays behind.
        grace = FINISH_SECONDS + GRACE_SECONDS if _on_gpu(plan) else GRACE_SECONDS
        self._end = weakref.finalize(
            self, _end, self._processes, self._arena, self._groups, self.slices, grace, os.getpid()
        )

    @property
    def is_well(self) -> bool:
        return self._failure is None and bool(self._processes)

    def load(self, leaves: Mapping[int, Any], late: Mapping[str, Any], services: Services) -> None:
        is_new = not self._processes
        if is_new:
            with self._or_end():
                self._start()
        self.pause()
        self._connect()
        if self.board:
            latest = shared_latest(self.plan, self._arena.memory, self._layout)
            assert latest is not None
            latest.empty()
            self.board.clear()
        home = self.plan.projection.placement.home
        host = {v: to_host(x) for v, x in leaves.items()}
        on_its_way = {name: to_host(x) for name, x in late.items()}
        at = services.addresses()
        wanted = [
            ("load", {v: x for v, x in host.items() if home[v] == place}, on_its_way, at)
            for place, _ in names(self.plan)
        ]
        self._ask_each(wanted)
        if is_new:
            with self._or_end():
                self._compile_once()

    def _connect(self) -> None:
        """Make all links anew, in two phases: nothing that was on its way arrives any more."""
        self._epoch += 1
        self._ask("disconnect")
        addresses = {key: at for mine in self._ask("listen") for key, at in mine.items()}
        self._ask("connect", addresses, self._epoch)

    def held(self) -> list[dict[int, Any]]:
        values = self.plan.graph.values
        return [
            {v: jax.numpy.asarray(from_host(x, values[v])) for v, x in held.items()}
            for held in self._ask("held")
        ]

    def late(self) -> dict[str, Any]:
        specs = late_specs(self.plan)
        found = {name: x for late in self._ask("late") for name, x in late.items()}
        return {
            name: jax.numpy.asarray(from_host(x, specs.get(name, x))) for name, x in found.items()
        }

    def run(self, count: int) -> list[dict[int, np.ndarray]]:
        """So many iterations of those who count them; others of a free channel go on meanwhile."""
        with self._or_end():
            if self.board:
                self.board.set_stop(False)
            counts = counting(self.plan)
            done = [p for p in self._processes if p.place in counts]
            for process, status in zip(self._processes, self.statuses, strict=True):
                if process.name in self._at_work:
                    continue
                status["phase"] = WORKING  # until it has ended, also where it has not begun
                if process.place in counts:
                    _tell(process, ("run", count))
                else:
                    _tell(process, ("run", None))
                    self._at_work.add(process.name)
            rows = self._answers(done)
        return [rows.get(process.name, {}) for process in self._processes]

    def pause(self) -> None:
        """Let everybody come to the end of an iteration."""
        if self.board and self._at_work:
            with self._or_end():
                self.board.set_stop(True)
                self._answers([p for p in self._processes if p.name in self._at_work])
                self._at_work.clear()

    def record(self) -> None:
        self._ask("record")

    def spans(self) -> tuple[list[Span], int]:
        if self._failure:  # they are gone with the processes
            return [], 0
        found = self._ask("spans")
        return [span for spans, _ in found for span in spans], sum(left for _, left in found)

    def close(self) -> None:
        self._failure = self._failure or RuntimeError("this run has ended: make another executor.")
        self.statuses = self.statuses.copy()  # what was there at the end; the memory goes
        self.board = None
        self._end()

    def _start(self) -> None:
        algorithm = pack(self.plan.graph.algorithm, self.plan.graph.state)
        config = {
            name: value
            for name, value in jax.config.values.items()
            if isinstance(value, (bool, int, float, str)) and name != "jax_platforms"
        }
        for place, index in names(self.plan):
            spot = self.plan.place(place)
            environment = self._environment(spot, index)
            self._processes.append(_spawn(f"{place}/{index}", self._arena.fd, environment))
        for process, (place, index) in zip(self._processes, names(self.plan), strict=True):
            job = Job(
                place, index, self.plan.to_json(), self.plan.graph.digest, self.plan.graph.num_envs,
                self.plan.graph.exact, self.plan.graph.served, self._arena.nbytes, algorithm,
                config,
            )  # fmt: skip
            _tell(process, sys.path)
            _tell(process, job)
        seen = self._answers(self._processes)
        for place, index in names(self.plan):
            for device in self.plan.place(place).share(index):
                self.slices.verify(device, seen[f"{place}/{index}"])
        for place in sorted(self.plan.averaging):
            self.reductions[place] = self._reduction(place)

    def _reduction(self, place: str) -> Table:
        """Which way this place averages: where there are several, its replicas measure them."""
        members, sites = Members.of(self.plan, place), self.plan.average_sites(place)
        wanted, (start, _) = self.plan.channel(place, place).reduce, self._layout.averages[place]
        table = only(members, sites, wanted)
        if table is None:
            mine = [process for process in self._processes if process.place == place]
            trials = Reduction.headers(members, sites, wanted)
            self._groups += [start + at for at in trials]
            table = choose(members, sites, self._ask_some(mine, "measure"))
            self._ask_some(mine, "use", table.chosen)
        headers = Reduction.headers(members, sites, wanted, table.chosen)
        self._groups += [start + at for at in headers]
        return table

    def _compile_once(self) -> None:
        """One of the replicas on a GPU compiles for all, and leaves the others what it compiled.

        Compilers on one GPU at a time would time each other's kernels when they choose among them.
        """
        first = {f"{place.name}/0" for place in self.plan.places if place.replicas > 1}
        if _on_gpu(self.plan):
            self._ask_some([p for p in self._processes if p.name in first], "compile")

    def _ask_some(self, of: Sequence[_Process], *command: Any) -> list[Any]:
        for process in of:
            _tell(process, command)
        answers = self._answers(of)
        return [answers[process.name] for process in of]

    def _environment(self, place: Place, index: int) -> dict[str, str]:
        """How a process shares the machine."""
        on = place.share(index)
        environment = _environment(on, place.replicas)
        for device in on:
            environment = changed(environment, self.slices.env(device))
        if self.plan.xla_flags:
            flags = environment.get("XLA_FLAGS", "")
            environment["XLA_FLAGS"] = f"{flags} {self.plan.xla_flags}".strip()
        return environment

    def _ask(self, *command: Any) -> list[Any]:
        return self._ask_each([command] * len(self._processes))

    def _ask_each(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        self.pause()
        with self._or_end():
            for process, command in zip(self._processes, commands, strict=True):
                _tell(process, command)
            answers = self._answers(self._processes)
            return [answers[process.name] for process in self._processes]

    @contextlib.contextmanager
    def _or_end(self) -> Iterator[None]:
        """Within, any failure ends all processes; a run that failed stays failed."""
        if self._failure:
            raise self._failure
        try:
            yield
        except BaseException as error:
            self._failure = error
            self.close()
            raise

    def _answers(self, of: Sequence[_Process]) -> dict[str, Any]:
        """An answer of each of these; the first failure of any ends all, and is raised."""
        answers: dict[str, Any] = {}
        watch = Watch(self.plan, self.statuses)
        with selectors.DefaultSelector() as selector:
            for process in self._processes:
                selector.register(process.connection, selectors.EVENT_READ, process)
            while any(process.name not in answers for process in of):
                ready = selector.select(LOOK_SECONDS)
                for key, _ in ready:
                    process: _Process = key.data
                    answers[process.name] = self._answer(process)
                    selector.unregister(process.connection)
                if not ready:
                    _check_alive([p for p in self._processes if p.name not in answers])
                watch.look()
        return answers

    def _answer(self, process: _Process) -> Any:
        try:
            outcome, content = rpc.read(process.connection)
        except EOFError:
            raise InstanceError(_epitaph(process)) from None
        if outcome == "done":
            return content
        shared = company(self.plan, process.name) if "CUDA" in content else ""
        raise InstanceError(f"the instance `{process.name}` failed:\n{content}{shared}")


def company(plan: Plan, name: str) -> str:
    """Who else is on the GPU of an instance, where what becomes of one becomes of all."""
    at = {f"{place}/{i}": plan.place(place).share(i) for place, i in names(plan)}
    mine = {device_of(device) for device in at[name] if "/mps:" in device}
    others = [n for n, on in at.items() if n != name and mine & set(map(device_of, on))]
    shared = f"it shares {', '.join(sorted(mine))} with {', '.join(others)}"
    return f"({shared}: a fault of one client of MPS reaches all.)" if others else ""


def _spawn(name: str, arena_fd: int, environment: Mapping[str, str]) -> _Process:
    mine, theirs = socket.socketpair()
    with theirs:
        fds, parent = (str(theirs.fileno()), str(arena_fd)), str(os.getpid())
        command = ["-m", "hocket.runtime.launch.worker", *fds, parent, name]
        popen = subprocess.Popen(
            [sys.executable, *command],
            pass_fds=(theirs.fileno(), arena_fd),
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # Ctrl-C is not for them
        )
    return _Process(name, popen, mine)


def _environment(on: Sequence[str], replicas: int) -> dict[str, str]:
    """How a process shares the machine: no accelerator where it computes on none."""
    # Replicas of one place are busy at the same time, so they share the cores for XLA's threads:
    # two replicas of PPO on two cores went from 1.13 times one core's speed to 1.49. Places are
    # not: a learner that had half of the cores was half as fast wherever it is what takes the time.
    threads = str(max(1, usable_cores() // replicas))
    # Several processes share a GPU: each takes memory as it needs it, not most of it at once.
    usual = {"PJRT_NPROC": threads, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    on_cpu = bool(on) and all(device.startswith("cpu:") for device in on)
    return {**usual, **os.environ, **({"JAX_PLATFORMS": "cpu"} if on_cpu else {})}


def _on_gpu(plan: Plan) -> bool:
    """Whether an instance computes on a GPU: then it ends after its current program."""
    named = [device for place in plan.places for device in place.on]
    everywhere = all(place.on for place in plan.places)
    return any(d.startswith("gpu:") for d in named) or (
        not everywhere and jax.default_backend() == "gpu"
    )


def _tell(process: _Process, message: Any) -> None:
    """Also where it is gone: then its answer is missing, and that says how it ended."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        rpc.write(process.connection, message)


def _check_alive(processes: list[_Process]) -> None:
    """A process that is gone closes its connection, unless one that it has forked holds it too."""
    for process in processes:
        if process.popen.poll() is not None:
            raise InstanceError(_epitaph(process))


def _epitaph(process: _Process) -> str:
    """How a process ended that said nothing."""
    try:
        code = process.popen.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        return f"the instance `{process.name}` (process {process.popen.pid}) stopped answering."
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    hint = " Was there enough memory?" if code == -signal.SIGKILL else ""
    return f"the instance `{process.name}` failed: process {process.popen.pid} {how}.{hint}"


def _end(
    processes: list[_Process], arena: Arena, groups: list[int], slices: Slices, grace: float,
    owner: int,
) -> None:  # fmt: skip
    """Let every process end, by force where it does not within `grace` seconds; then its slices."""
    if os.getpid() != owner:  # a fork of the process that they belong to
        return
    for start in groups:  # nobody waits on a GPU for another that is gone
        library().hocket_average_close(arena.address + start)
    if groups:
        time.sleep(CLOSING_SECONDS)
    for process in processes:
        process.connection.close()  # which ends it, whatever it is doing
    deadline = time.monotonic() + grace
    for process in processes:
        try:
            process.popen.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.popen.kill()
            process.popen.wait()
    processes.clear()
    slices.close()
    arena.close()
