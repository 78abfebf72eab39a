"""A worker in a process of its own.

    python -m hocket.runtime.launch.process FOLDER RUN NAME

It listens in FOLDER, prints the address as its first line, and waits for the run to connect. RUN is
the process id of the run. The run sends an assignment. The worker traces the algorithm itself, and
refuses to go on if its graph differs from the run's. Then it obeys commands until the run is gone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from hocket.cluster.nvidia.cuda import synchronize
from hocket.cluster.slices import seen_here
from hocket.runtime.launch.control import Failure, tell
from hocket.runtime.launch.shutdown import RunEnded, Shutdown
from hocket.system.as_child import leave_signals, say_hello, wait_for_end_of
from hocket.system.cores import keep_to_cores
from hocket.system.garbage import keep_imports
from hocket.system.messages import MessageSocket
from hocket.system.names import move_files
from hocket.system.network import Network, set_network
from hocket.system.network.local import accept, listen
from hocket.system.shared_memory import MemoryFile
from hocket.system.steward import NODE

STATUS_SECONDS = 0.2
"""Seconds between two reports of status by a process that shares no memory."""


@dataclass(frozen=True)
class Assignment:
    """The instance that one worker is to run, with everything it needs for that."""

    place: str
    index: int
    plan: str
    """The plan as JSON."""
    digest: str
    """The digest of the graph that the plan was made for."""
    num_envs: int
    exact: bool
    served: bool
    algorithm: bytes
    """The algorithm, as `shipping.pack` packed it."""
    config: dict[str, Any]
    """The configuration of JAX in the run's process."""
    memory_nbytes: int | None
    """The size of the shared memory in bytes, or None without one.

    The file descriptor of the memory is sent right after the assignment.
    """
    network: Network
    """The network in which the instance meets the others of its run."""
    reports: bool
    """True to report the status through the connection, since the run does not see this memory."""
    files: Mapping[str, str] = field(default_factory=dict)
    """The files that the plan names, by their names in it, and where this machine has them."""


def main() -> None:
    """Carry out one assignment. The process ends in `shutdown.end`, never by returning."""
    leave_signals()
    folder, run, name = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    commands: queue.Queue[Any] = queue.Queue()
    # The command only wakes the main thread. There `RunEnded` is raised before a command is run.
    shutdown = Shutdown(wake=lambda: commands.put(("nothing",)))
    _in_thread(_stay_with, run, folder, shutdown)
    listening, address = listen(folder, name)
    try:
        say_hello(address)
    except BrokenPipeError:  # whoever started this process was killed, and could not tidy up
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)
    keep_to_cores()
    # Keep JAX from logging the traceback of a callback that fails: the run reports the failure,
    # with the traceback and the name of this instance.
    logging.getLogger("jax._src.callback").setLevel(logging.CRITICAL)
    connection = accept(listening)
    try:
        _work(connection, commands, shutdown)
    except EOFError:  # the run ended before a thread was watching for that
        shutdown.end()
    except BaseException as error:  # noqa: BLE001 (the run reports it with this instance's name)
        tell(connection, ("failed", Failure(traceback.format_exc() + _advice(error))))
    shutdown.stopped()
    while True:
        with contextlib.suppress(RunEnded):
            commands.get()  # do nothing until another thread ends this process


def _work(connection: MessageSocket, commands: queue.Queue[Any], shutdown: Shutdown) -> NoReturn:
    """Receive the assignment, then obey commands."""
    sys.path[:0] = [path for path in connection.read() if path not in sys.path]
    given: Assignment = connection.read()
    set_network(given.network)
    move_files(given.files)
    file = None
    if given.memory_nbytes is not None:
        file = MemoryFile.attach(connection.receive_fd(), given.memory_nbytes)
    _in_thread(_listen, connection, commands, shutdown)
    worker = _worker(given, file)
    if given.reports:
        _in_thread(_report, worker, connection)
    _prepare_end(worker, shutdown)
    connection.write(("done", seen_here()))
    while True:
        command, *arguments = commands.get()
        done = getattr(worker, command)(*arguments)
        if given.reports:
            _tell_status(worker, connection)  # so that the run has it before the answer
        connection.write(("done", done))


def _worker(given: Assignment, file: MemoryFile | None) -> Any:
    """Make the worker of an assignment."""
    # Imported here, because importing JAX takes seconds, and the address is printed before that.
    import jax

    for name, value in given.config.items():
        if jax.config.values.get(name) != value:
            jax.config.update(name, value)
    from hocket.cluster.devices import find_devices
    from hocket.core.graph.trace import trace
    from hocket.core.plan.json import from_json
    from hocket.errors import PlanError
    from hocket.runtime.averaging.choice import Reduction
    from hocket.runtime.averaging.known import Averaging
    from hocket.runtime.compile.cache import enable_cache
    from hocket.runtime.launch.memory import PlanMemory
    from hocket.runtime.launch.shipping import unpack
    from hocket.runtime.launch.worker import RemoteWorker

    keep_imports()
    enable_cache()
    graph = trace(unpack(given.algorithm), given.num_envs, exact=given.exact, served=given.served)
    if graph.digest != given.digest:
        raise PlanError(
            f"{type(graph.algorithm).__name__} has a different graph in this process "
            f"({graph.digest}) than in the run's ({given.digest}). Let the graph depend only on "
            f"the algorithm's fields, not on global variables or on the process."
        )
    plan = from_json(given.plan, graph)
    devices = find_devices(plan.place(given.place).share(given.index))
    memory = PlanMemory.attach(plan, file, given.place, devices)
    average = None
    if given.place in plan.averaging:
        of_place = memory.averages.get(given.place)
        average = Reduction(Averaging.of(plan, given.place), given.index, of_place)
    return RemoteWorker(plan, given.place, given.index, memory, average)


def _advice(error: BaseException) -> str:
    """Return what to do about a module that this node lacks; "" for any other error."""
    if NODE not in os.environ or not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    from hocket.runtime.launch.projects import lacks

    return lacks(os.environ[NODE], error.name)


def _prepare_end(worker: Any, shutdown: Shutdown) -> None:
    """On a GPU, have this process end only after its current program."""
    gpus = [d for d in worker.instance.store.devices if d.platform == "gpu"]
    if gpus:
        shutdown.first = [worker.average.close] if worker.average else []
        shutdown.synchronize = lambda: [synchronize(gpu.local_hardware_id) for gpu in gpus]


def _in_thread(function: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=function, args=arguments, daemon=True).start()


def _stay_with(run: int, folder: Path, shutdown: Shutdown) -> None:
    """End this process when the run's process ends, if the run itself started it.

    If another program started this process, it is `_listen` that notices the end of the run.
    """
    if os.getppid() == run:
        wait_for_end_of(run)
        shutil.rmtree(folder, ignore_errors=True)  # if the run was killed, it could not do so
        shutdown.end()


def _listen(connection: MessageSocket, commands: queue.Queue[Any], shutdown: Shutdown) -> None:
    """Put commands into the queue; end this process when the run hangs up."""
    with contextlib.suppress(EOFError):
        while True:
            commands.put(connection.read())
    shutdown.end()


def _report(worker: Any, connection: MessageSocket) -> None:
    """Report the status of this instance now and then, since the run cannot read it itself."""
    while True:
        time.sleep(STATUS_SECONDS)
        _tell_status(worker, connection)


def _tell_status(worker: Any, connection: MessageSocket) -> None:
    tell(connection, ("status", worker.instance.status.tobytes()))


if __name__ == "__main__":
    main()
