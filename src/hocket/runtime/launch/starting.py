"""The processes of a plan: started by a launcher, connected to, and told what they are."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

import jax
import numpy as np

from hocket.cluster.slices import Slices
from hocket.core.plan.data import Plan
from hocket.core.plan.json import to_json
from hocket.runtime.launch import Command, Launcher, Member, Seat
from hocket.runtime.launch.control import Answers, Line, Remote, connect
from hocket.runtime.launch.hands import Hand, epitaph, words
from hocket.runtime.launch.process import Job, worker_command
from hocket.runtime.launch.seats import environment_of
from hocket.runtime.launch.shared import Shared
from hocket.runtime.launch.shipping import pack
from hocket.runtime.launch.watch import GRACE_SECONDS, InstanceError
from hocket.runtime.observe.status import names

HELLO_SECONDS = 60.0
"""What a process gets to say where it listens."""


def start_processes(
    plan: Plan, launcher: Launcher, seats: list[Seat], shared: Shared, slices: Slices,
    answers: Answers, hands: list[Hand],
) -> None:  # fmt: skip
    """Start a process for each seat, then connect to each, in a folder that nobody else enters.

    `hands` has those that are connected, so that they are ended if a later one cannot be reached.
    """
    algorithm = pack(plan.graph.algorithm, plan.graph.state)
    folder = Path(tempfile.mkdtemp(prefix="hocket-"))
    started: list[tuple[str, Member]] = []
    try:
        for seat, (place, index) in zip(seats, names(plan), strict=True):
            env = environment_of(plan, plan.place(place), index, slices)
            command = Command(worker_command(folder, seat.name), env)
            started.append((seat.name, launcher.start(seat, command)))
        while started:
            name, member = started[0]
            line = _greeted(name, member)
            note = partial(_note, shared, len(hands))
            hands.append(Hand(name, member, Remote(name, line, answers, note)))
            started.pop(0)
            _hand_over(plan, name, shared, algorithm, line)
    finally:
        for _, member in started:
            member.kill(GRACE_SECONDS)
        shutil.rmtree(folder, ignore_errors=True)


def _greeted(name: str, member: Member) -> Line:
    """The connection to a process that was started; or why there is none."""
    try:
        address = member.hello(HELLO_SECONDS)
        if not address:
            raise InstanceError(epitaph(name, member))
        return connect(address, HELLO_SECONDS)
    except (OSError, ValueError) as error:  # TimeoutError is an OSError
        ended = member.poll()
        why = words(ended) if ended else str(error)
        raise InstanceError(f"the instance `{name}` could not be reached: {why}") from error


def _hand_over(plan: Plan, name: str, shared: Shared, algorithm: bytes, line: Line) -> None:
    """Tell a process what it is."""
    place, _, index = name.rpartition("/")
    graph, arena = plan.graph, shared.arena
    config = {
        name: value
        for name, value in jax.config.values.items()
        if isinstance(value, (bool, int, float, str)) and name != "jax_platforms"
    }
    job = Job(
        place, int(index), to_json(plan), graph.digest, graph.num_envs, graph.exact,
        graph.served, algorithm, config, arena.nbytes if arena else None,
    )  # fmt: skip
    with contextlib.suppress(OSError):  # where it has ended, its missing answer says so
        line.write(sys.path)
        line.write(job)
        if arena:
            line.send_fd(arena.fd)


def _note(shared: Shared, row: int, status: bytes) -> None:
    """Keep what an instance that shares no memory reports of itself."""
    shared.statuses[row] = np.frombuffer(status, shared.statuses.dtype)[0]
