"""A worker in a process of its own.

    python -m hocket.runtime.launch.process FOLDER RUN NAME

Listens in FOLDER, says where as its first line, and waits for the run to connect, whose process is
RUN. It is told what to run, traces that for itself, says which graph it found, and then does as it
is told, until it is told to end or the run is gone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from hocket.cluster.nvidia.cuda import synchronize
from hocket.cluster.slices import seen_here
from hocket.cluster.slices.cpu import keep_to_cores
from hocket.runtime.launch.control import Failure, Line, accept, listen
from hocket.runtime.launch.leaving import Leaving, Told

STATUS_SECONDS = 0.2
"""How often a process that shares no memory tells how it stands."""


@dataclass(frozen=True)
class Job:
    """What one worker runs."""

    place: str
    index: int
    plan: str
    """As JSON."""
    digest: str
    """Of the graph it was made for."""
    num_envs: int
    exact: bool
    served: bool
    algorithm: bytes
    """Packed."""
    config: dict[str, Any]
    """How JAX is configured in the process that started this one."""
    arena_bytes: int | None
    """The size of the memory whose descriptor comes with the job; None: it shares none."""


def worker_command(folder: Path, name: str) -> tuple[str, ...]:
    """The command that starts the worker of an instance."""
    return (sys.executable, "-m", __name__, str(folder), str(os.getpid()), name)


def main() -> None:
    """Serve one job."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    # As is SIGTERM. It is not ignored, since what an environment starts would ignore it as well.
    signal.signal(signal.SIGTERM, lambda *_: None)
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    folder, run, name = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    commands: queue.Queue[Any] = queue.Queue()
    leaving = Leaving(wake=lambda: commands.put(("nothing",)))
    _aside(_stay_with, run, folder, leaving)
    listening, address = listen(folder, name)
    print(address, flush=True)  # noqa: T201 (which is how the run finds it)
    keep_to_cores()
    cast(Any, sys.stdout).reconfigure(line_buffering=True)  # it may end at any moment
    # jax prints the traceback of a callback that fails, before the run tells whose it was.
    logging.getLogger("jax._src.callback").setLevel(logging.CRITICAL)
    line = accept(listening)
    try:
        sys.path[:0] = [path for path in line.read() if path not in sys.path]
        job: Job = line.read()
        fd = None if job.arena_bytes is None else line.receive_fd()
        _aside(_listen, line, commands, leaving)
        worker = _worker(job, fd, line)
        _take_leave(worker, leaving)
        line.write(("done", seen_here()))
        while True:
            command, *arguments = commands.get()
            done = getattr(worker, command)(*arguments)
            if fd is None:
                _tell_status(worker, line)  # as it is with this answer
            line.write(("done", done))
    except EOFError:  # before it was told anything
        leaving.leave()
    except BaseException:  # noqa: BLE001 (told to the run, with this instance's name)
        with contextlib.suppress(OSError):
            line.write(("failed", Failure(traceback.format_exc())))
    leaving.stopped()
    while True:
        with contextlib.suppress(Told):
            commands.get()  # for as long as the other side is there


def _worker(job: Job, fd: int | None, line: Line) -> Any:
    """The worker of a job. Imported here: what says hello first need not wait for JAX."""
    import jax

    for name, value in job.config.items():
        if jax.config.values.get(name) != value:
            jax.config.update(name, value)
    from hocket.cluster.devices import find_devices
    from hocket.core.graph.trace import trace
    from hocket.core.plan.json import from_json
    from hocket.errors import PlanError
    from hocket.runtime.averaging import Space
    from hocket.runtime.averaging.choice import Reduction
    from hocket.runtime.averaging.known import Averaging
    from hocket.runtime.compile.cache import enable_cache
    from hocket.runtime.launch.shared import Shared
    from hocket.runtime.launch.shipping import unpack
    from hocket.runtime.launch.worker import RemoteWorker
    from hocket.system.shared_memory import Arena

    enable_cache()
    graph = trace(unpack(job.algorithm), job.num_envs, exact=job.exact, served=job.served)
    if graph.digest != job.digest:
        raise PlanError(
            f"{type(graph.algorithm).__name__} is another graph in this process "
            f"({graph.digest}) than in the one that started it ({job.digest}): does it depend "
            f"on something outside itself?"
        )
    plan = from_json(job.plan, graph)
    devices = find_devices(plan.place(job.place).share(job.index))
    if fd is None:
        shared = Shared.alone(plan)
    else:
        assert job.arena_bytes is not None
        shared = Shared.attach(plan, Arena.attach(fd, job.arena_bytes), job.place, devices)
    average = None
    if job.place in plan.averaging:
        space = None
        if shared.arena and shared.layout:
            space = Space(shared.arena, *shared.layout.averages[job.place])
        average = Reduction(Averaging.of(plan, job.place), job.index, space)
    worker = RemoteWorker(plan, job.place, job.index, shared, average)
    if fd is None:
        _aside(_report, worker, line)
    return worker


def _take_leave(worker: Any, leaving: Leaving) -> None:
    """How this process ends: on a GPU, not in the midst of a program."""
    gpus = [d for d in worker.instance.mesh.devices.flat if d.platform == "gpu"]
    if gpus:
        leaving.first = [worker.average.close] if worker.average else []
        leaving.synchronize = lambda: [synchronize(gpu.local_hardware_id) for gpu in gpus]


def _aside(function: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=function, args=arguments, daemon=True).start()


def _stay_with(run: int, folder: Path, leaving: Leaving) -> None:
    """End when the run has: its connection may be held open by something that it forked.

    Whoever was started by somebody else than the run has the connection alone to go by.
    """
    if os.getppid() != run:
        return
    while os.getppid() == run:
        time.sleep(1.0)
    shutil.rmtree(folder, ignore_errors=True)  # which the run removes, once all are connected
    leaving.leave()


def _listen(line: Line, commands: queue.Queue[Any], leaving: Leaving) -> None:
    """Pass commands on; without anybody to give them, end."""
    while True:
        try:
            message = line.read()
        except EOFError:
            leaving.leave()
        else:
            commands.put(message)


def _report(worker: Any, line: Line) -> None:
    """Tell the run how this instance stands, where it cannot look for itself."""
    while True:
        time.sleep(STATUS_SECONDS)
        _tell_status(worker, line)


def _tell_status(worker: Any, line: Line) -> None:
    with contextlib.suppress(OSError):
        line.write(("status", worker.instance.status.tobytes()))


if __name__ == "__main__":
    main()
