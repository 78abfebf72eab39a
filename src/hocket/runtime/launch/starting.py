"""Start the instances of a plan, as threads, as processes, or on the nodes of a cluster.

Each process prints the address at which it listens. The run connects to it, and hands it its
assignment. On a cluster, the run starts a steward on each node, which starts the processes there.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from hocket.core.plan.data import Plan
from hocket.core.plan.json import to_json
from hocket.errors import PlanError
from hocket.runtime.launch import Command, Member, Seat, process
from hocket.runtime.launch.control import Answers, Control, pass_answers, tell
from hocket.runtime.launch.ending import Resources
from hocket.runtime.launch.memory import PlanMemory, memory_map
from hocket.runtime.launch.nodes import Node, connect_to_steward, network_of
from hocket.runtime.launch.process import Assignment
from hocket.runtime.launch.projects import code_of, send
from hocket.runtime.launch.seats import environment_of, seats_of, settings_for_nodes
from hocket.runtime.launch.shipping import pack
from hocket.runtime.launch.watch import GRACE_SECONDS, InstanceError, RunningInstance, Watch, lost
from hocket.runtime.launch.worker import serve
from hocket.runtime.observe.status import names, place_and_index
from hocket.system import steward
from hocket.system.messages import MessageSocket
from hocket.system.network import Network, Secret, get_network, local
from hocket.system.registry import lacking
from hocket.system.steward import Order

RESERVE_SECONDS = 60.0
"""The time limit in seconds for a launcher to reserve room for all processes."""
HELLO_SECONDS = 60.0
"""The time limit in seconds to get the address of a process, and again to connect to it."""


def start(plan: Plan, held: Resources, watch: Watch) -> None:
    """Start every instance. Add each to `held.running` at once, so that cleanup will end it."""
    seats = seats_of(plan)
    held.launcher.reserve(seats, RESERVE_SECONDS)
    if plan.launch.one_process:
        _start_threads(held, seats, watch.answers)
        return
    (_start_on_nodes if plan.launch.nodes else _start_processes)(plan, held, seats, watch.answers)
    # The first answer of a process says what it sees of its device, to verify its slice.
    seen = watch.gather(instance.name for instance in held.running)
    for place, index in names(plan):
        for device in plan.place(place).share(index):
            held.slices.verify(device, seen[f"{place}/{index}"])


def _start_threads(held: Resources, seats: Sequence[Seat], answers: Answers) -> None:
    for worker, seat in zip(held.workers, seats, strict=True):
        commands: queue.SimpleQueue[tuple[Any, ...] | None] = queue.SimpleQueue()
        work = partial(serve, worker, commands, answers)
        member = _started(held, seat, Command(work=work))
        hang_up = partial(commands.put, None)
        held.running.append(RunningInstance(seat.name, member, commands.put, hang_up))


@contextlib.contextmanager
def _addresses() -> Iterator[Path]:
    """Make a folder for the sockets of processes, closed to other users, and remove it."""
    folder = Path(tempfile.mkdtemp(prefix="hocket-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start_processes(plan: Plan, held: Resources, seats: Sequence[Seat], answers: Answers) -> None:
    """Start a process of this machine for each seat, then connect to each."""
    algorithm, file = pack(plan.graph.algorithm, plan.graph.state).data, held.memory.file
    with (
        _addresses() as folder,
        _members(held, seats, partial(_worker_command, plan, held, folder)) as waiting,
    ):
        while waiting:
            seat, member = waiting[0]
            connection = _reached(f"the instance `{seat.name}`", member, local.connect)
            _add(plan, held, seat.name, member, connection, answers)
            waiting.pop(0)
            with contextlib.suppress(OSError):  # if it has died, its missing answer shows that
                connection.write(sys.path)
                given = algorithm, file.nbytes if file else None, get_network()
                connection.write(_assignment(plan, seat.name, *given))
                if file:
                    connection.send_fd(file.fd)


def _start_on_nodes(plan: Plan, held: Resources, seats: Sequence[Seat], answers: Answers) -> None:
    """Start a steward on each node, then have it start the instances of its node."""
    code = code_of(plan)
    memory_nbytes = 0 if plan.launch.shares_memory == "none" else memory_map(plan).nbytes
    networks = {seat.node: network_of(held.launcher, seat.node) for seat in seats}
    with _members(held, seats, partial(_steward_command, held, networks)) as waiting:
        while waiting:
            seat, member = waiting[0]
            connect = partial(connect_to_steward, seat.node)
            connection = _reached(f"the steward of the node `{seat.node}`", member, connect)
            held.nodes.append(Node(seat.node, member, connection, held.lease, held.logs))
            waiting.pop(0)
    files = send(code, held.nodes)
    for seat, node in zip(seats, held.nodes, strict=True):
        given = code.algorithm, memory_nbytes or None, networks[seat.node]
        for name in seat.instances:
            task = _assignment(plan, name, *given, node=seat.node, files=files[seat.node])
            _start_on_node(plan, held, seat, node, task, answers)
    by_name = {instance.name: instance for instance in held.running}
    held.running[:] = [by_name[f"{place}/{index}"] for place, index in names(plan)]


def _start_on_node(
    plan: Plan, held: Resources, seat: Seat, node: Node, task: Assignment, answers: Answers
) -> None:
    """Have a steward start one instance, and tell the instance what to run."""
    name, memory_nbytes = f"{task.place}/{task.index}", task.memory_nbytes or 0
    beside = sum(place_and_index(other)[0] == task.place for other in seat.instances)
    env = settings_for_nodes(plan, task.place, task.index)
    instance = node.start(Order(name, process.__name__, env, beside, memory_nbytes))
    _add(plan, held, name, instance, instance, answers)
    instance.write([])  # paths of this machine mean nothing there
    instance.write(task)
    if memory_nbytes:
        instance.give_memory()


@contextlib.contextmanager
def _members(
    held: Resources, seats: Sequence[Seat], command: Callable[[Seat], Command]
) -> Iterator[list[tuple[Seat, Member]]]:
    """Start all seats. In the end, kill each that the context's body left in the list."""
    waiting: list[tuple[Seat, Member]] = []
    try:
        # Start all before connecting to any, since each takes a while to import its modules.
        for seat in seats:
            waiting.append((seat, _started(held, seat, command(seat))))
        yield waiting
    finally:
        for _, member in waiting:
            member.kill(GRACE_SECONDS)


def _worker_command(plan: Plan, held: Resources, folder: Path, seat: Seat) -> Command:
    argv = (sys.executable, "-m", process.__name__, str(folder), str(os.getpid()), seat.name)
    return Command(argv, environment_of(plan, seat, held.slices))


def _steward_command(held: Resources, networks: Mapping[str, Network], seat: Seat) -> Command:
    setup = steward.Setup(seat.node, held.lease, networks[seat.node])
    return Command(
        (sys.executable, "-P", "-m", steward.__name__), os.environ, Secret(pickle.dumps(setup))
    )


def _add(
    plan: Plan, held: Resources, name: str, member: Member, connection: Control, answers: Answers
) -> None:
    """Add a process to the running instances, and begin to listen to it."""
    row = names(plan).index(place_and_index(name))
    note = partial(_note, held.memory, row)
    given = connection, name, answers, note
    threading.Thread(target=pass_answers, args=given, daemon=True).start()
    command = partial(tell, connection)
    held.running.append(RunningInstance(name, member, command, connection.close))


def _started(held: Resources, seat: Seat, command: Command) -> Member:
    """Start a process for a seat. Raise if the launcher returns no `Member` by which to kill it."""
    member = held.launcher.start(seat, command)
    if missing := lacking(member, Member):
        raise InstanceError(
            f"the launcher's `start` must return a `hocket.runtime.launch.Member`, but its result "
            f"for `{seat.name}` has no {', '.join(f'`{name}`' for name in missing)}."
        )
    return member


def _reached(
    name: str, member: Member, connect: Callable[[str, float], MessageSocket]
) -> MessageSocket:
    """Connect to a process that was started, or raise an error that says why that failed."""
    try:
        if address := member.hello(HELLO_SECONDS):
            return connect(address, HELLO_SECONDS)
    except PlanError:  # the process was reached, and is of no use to this run
        raise
    except (OSError, ValueError) as error:  # TimeoutError is an OSError
        if member.poll() is None:
            raise InstanceError(f"{name} could not be reached: {error}") from error
    raise lost(name, member)


def _assignment(
    plan: Plan,
    name: str,
    algorithm: bytes,
    memory_nbytes: int | None,
    network: Network,
    *,
    node: str = "",
    files: Mapping[str, str] = MappingProxyType({}),
) -> Assignment:
    """Return what a process is to run."""
    place, index = place_and_index(name)
    graph = plan.graph
    config = {
        name: value
        for name, value in jax.config.values.items()
        if isinstance(value, (bool, int, float, str)) and name != "jax_platforms"
        and not (node and isinstance(value, str) and "/" in value)  # a path of this machine
    }  # fmt: skip
    reports = bool(node) or memory_nbytes is None
    return Assignment(
        place, index, to_json(plan), graph.digest, graph.num_envs, graph.exact,
        graph.served, algorithm, config, memory_nbytes, network, reports, dict(files),
    )  # fmt: skip


def _note(memory: PlanMemory, row: int, status: bytes) -> None:
    """Store the status that an instance without shared memory has reported."""
    memory.statuses[row] = np.frombuffer(status, memory.statuses.dtype)[0]
