"""Start the instances of a plan, as threads or as processes.

Each process prints the address at which it listens. The run connects to it, and hands it its
assignment.
"""

from __future__ import annotations

import contextlib
import queue
import shutil
import sys
import tempfile
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hocket.core.plan.data import Plan
from hocket.core.plan.json import to_json
from hocket.runtime.launch import Command, Member, Seat
from hocket.runtime.launch.control import Answers, connect, pass_answers, tell
from hocket.runtime.launch.ending import Resources
from hocket.runtime.launch.memory import PlanMemory
from hocket.runtime.launch.process import Assignment, worker_command
from hocket.runtime.launch.seats import environment_of, seats_of
from hocket.runtime.launch.shipping import pack
from hocket.runtime.launch.watch import GRACE_SECONDS, InstanceError, RunningInstance, Watch, lost
from hocket.runtime.launch.worker import serve
from hocket.system.messages import MessageSocket
from hocket.system.network import get_network
from hocket.system.registry import lacking

RESERVE_SECONDS = 60.0
"""The time limit in seconds for a launcher to reserve room for all processes."""
HELLO_SECONDS = 60.0
"""The time limit in seconds to get the address of a process, and again to connect to it."""


def start(plan: Plan, held: Resources, watch: Watch) -> None:
    """Start every instance. Add each to `held.running` at once, so that cleanup will end it."""
    seats = seats_of(plan)
    held.launcher.reserve(seats, RESERVE_SECONDS)
    if plan.launch.one_process:
        for worker, seat in zip(held.workers, seats, strict=True):
            commands: queue.SimpleQueue[tuple[Any, ...] | None] = queue.SimpleQueue()
            work = partial(serve, worker, commands, watch.answers)
            member = _started(held, seat, Command(work=work))
            hang_up = partial(commands.put, None)
            held.running.append(RunningInstance(seat.name, member, commands.put, hang_up))
        return
    _start_processes(plan, held, seats, watch.answers)
    # The first answer of a process says what it sees of its device, to verify its slice.
    seen = watch.gather(seat.name for seat in seats)
    for seat in seats:
        for device in seat.devices:
            held.slices.verify(device, seen[seat.name])


def _start_processes(plan: Plan, held: Resources, seats: Sequence[Seat], answers: Answers) -> None:
    """Start a process for each seat, then connect to each by a socket in a private folder."""
    algorithm = pack(plan.graph.algorithm, plan.graph.state)
    folder = Path(tempfile.mkdtemp(prefix="hocket-"))
    waiting: list[tuple[Seat, Member]] = []
    try:
        # Start all before connecting to any, since each takes a while to import its modules.
        for seat in seats:
            env = environment_of(plan, seat, held.slices)
            program = Command(worker_command(folder, seat.name), env)
            waiting.append((seat, _started(held, seat, program)))
        while waiting:
            seat, member = waiting[0]
            connection = _connected(seat.name, member)
            note = partial(_note, held.memory, len(held.running))
            given = connection, seat.name, answers, note
            threading.Thread(target=pass_answers, args=given, daemon=True).start()
            command = partial(tell, connection)
            held.running.append(RunningInstance(seat.name, member, command, connection.close))
            # A member is always in `running` or `waiting`, so that it is ended whatever fails here.
            waiting.pop(0)
            _hand_over(plan, seat.name, held.memory, algorithm, connection)
    finally:
        for _, member in waiting:
            member.kill(GRACE_SECONDS)
        shutil.rmtree(folder, ignore_errors=True)


def _started(held: Resources, seat: Seat, command: Command) -> Member:
    """Start a process for a seat. Raise if the launcher returns no `Member` by which to kill it."""
    member = held.launcher.start(seat, command)
    if missing := lacking(member, Member):
        raise InstanceError(
            f"the launcher's `start` must return a `hocket.runtime.launch.Member`, but its result "
            f"for `{seat.name}` has no {', '.join(f'`{name}`' for name in missing)}."
        )
    return member


def _connected(name: str, member: Member) -> MessageSocket:
    """Connect to a process that was started, or raise an error that says why that failed."""
    try:
        if address := member.hello(HELLO_SECONDS):
            return connect(address, HELLO_SECONDS)
    except (OSError, ValueError) as error:  # TimeoutError is an OSError
        if member.poll() is None:
            raise InstanceError(f"the instance `{name}` could not be reached: {error}") from error
    raise lost(name, member)


def _hand_over(
    plan: Plan, name: str, memory: PlanMemory, algorithm: bytes, connection: MessageSocket
) -> None:
    """Send a process its assignment, and its file of shared memory if there is one."""
    place, _, index = name.rpartition("/")
    graph, file = plan.graph, memory.file
    config = {
        name: value
        for name, value in jax.config.values.items()
        if isinstance(value, (bool, int, float, str)) and name != "jax_platforms"
    }
    assignment = Assignment(
        place, int(index), to_json(plan), graph.digest, graph.num_envs, graph.exact,
        graph.served, algorithm, config, file.nbytes if file else None, get_network(),
    )  # fmt: skip
    with contextlib.suppress(OSError):  # if the process has died, its missing answer shows that
        connection.write(sys.path)
        connection.write(assignment)
        if file:
            connection.send_fd(file.fd)


def _note(memory: PlanMemory, row: int, status: bytes) -> None:
    """Store the status that an instance without shared memory has reported."""
    memory.statuses[row] = np.frombuffer(status, memory.statuses.dtype)[0]
