"""The instances of a plan, started by a launcher: threads, or processes that are told what to run.

A process is started, says where it listens, is connected to and handed its assignment.
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
from hocket.system.registry import lacking

RESERVE_SECONDS = 60.0
HELLO_SECONDS = 60.0
"""Seconds that a process gets to say where it listens."""


def start(plan: Plan, held: Resources, watch: Watch) -> None:
    """Start every instance; `held` has those that must be ended, also where a later one fails."""
    seats = seats_of(plan)
    held.launcher.reserve(seats, RESERVE_SECONDS)
    if plan.launch.one_process:
        for worker, seat in zip(held.workers, seats, strict=True):
            commands: queue.SimpleQueue[tuple[Any, ...] | None] = queue.SimpleQueue()
            work = partial(serve, worker, commands, watch.answers)
            member = _started(held, seat, Command(work=work))
            end = partial(commands.put, None)
            held.running.append(RunningInstance(seat.name, member, commands.put, end))
        return
    _start_processes(plan, held, seats, watch.answers)
    seen = watch.gather(seat.name for seat in seats)
    for seat in seats:
        for device in seat.devices:
            held.slices.verify(device, seen[seat.name])


def _start_processes(plan: Plan, held: Resources, seats: Sequence[Seat], answers: Answers) -> None:
    """Start a process for each seat, then connect to each, in a folder that nobody else enters."""
    algorithm = pack(plan.graph.algorithm, plan.graph.state)
    folder = Path(tempfile.mkdtemp(prefix="hocket-"))
    waiting: list[tuple[Seat, Member]] = []
    try:
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
            waiting.pop(0)
            _hand_over(plan, seat.name, held.memory, algorithm, connection)
    finally:
        for _, member in waiting:
            member.kill(GRACE_SECONDS)
        shutil.rmtree(folder, ignore_errors=True)


def _started(held: Resources, seat: Seat, command: Command) -> Member:
    """The member that a launcher starts, which must be one: it may have to be ended by force."""
    member = held.launcher.start(seat, command)
    if missing := lacking(member, Member):
        raise InstanceError(
            f"what the launcher started for `{seat.name}` is no member: it has no "
            f"{', '.join(f'`{name}`' for name in missing)}. `hocket.runtime.launch.Member` says "
            f"what one has."
        )
    return member


def _connected(name: str, member: Member) -> MessageSocket:
    """The connection to a process that was started; or why there is none."""
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
    """Tell a process what it is."""
    place, _, index = name.rpartition("/")
    graph, file = plan.graph, memory.file
    config = {
        name: value
        for name, value in jax.config.values.items()
        if isinstance(value, (bool, int, float, str)) and name != "jax_platforms"
    }
    assignment = Assignment(
        place, int(index), to_json(plan), graph.digest, graph.num_envs, graph.exact,
        graph.served, algorithm, config, file.nbytes if file else None,
    )  # fmt: skip
    with contextlib.suppress(OSError):  # where it has ended, its missing answer says so
        connection.write(sys.path)
        connection.write(assignment)
        if file:
            connection.send_fd(file.fd)


def _note(memory: PlanMemory, row: int, status: bytes) -> None:
    """Keep what an instance that shares no memory reports of itself."""
    memory.statuses[row] = np.frombuffer(status, memory.statuses.dtype)[0]
