"""One instance as a process of its own.

    python -m hocket.runtime.launch.worker SOCKET ARENA PARENT NAME

It is told what to run, traces that for itself, says which graph it found, and then does as it is
told, until it is told to end or whoever started it is gone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from hocket.cluster.nvidia.cuda import synchronize
from hocket.cluster.slices import seen_here
from hocket.cluster.slices.cpu import keep_to_cores
from hocket.runtime.launch import rpc
from hocket.runtime.launch.leaving import Leaving, Told


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
    arena_bytes: int
    algorithm: bytes
    """Packed."""
    config: dict[str, Any]
    """How JAX is configured in the process that started this one."""


def main() -> None:
    """Serve one job."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    # As is SIGTERM. It is not ignored, since what an environment starts would ignore it as well.
    signal.signal(signal.SIGTERM, lambda *_: None)
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    keep_to_cores()
    cast(Any, sys.stdout).reconfigure(line_buffering=True)  # it may end at any moment
    # jax prints the traceback of a callback that fails, before the run tells whose it was.
    logging.getLogger("jax._src.callback").setLevel(logging.CRITICAL)
    connection = socket.socket(fileno=int(sys.argv[1]))
    for fd in map(int, sys.argv[1:3]):
        os.set_inheritable(fd, False)  # what this process starts has nothing to do with them
    commands: queue.Queue[Any] = queue.Queue()
    leaving = Leaving(wake=lambda: commands.put(("nothing",)))
    _aside(_listen, connection, commands, leaving)
    _aside(_stay_with, int(sys.argv[3]), leaving)
    try:
        sys.path[:0] = [path for path in commands.get() if path not in sys.path]
        worker = _Worker(commands.get(), int(sys.argv[2]))
        worker.take_leave(leaving)
        rpc.write(connection, ("done", seen_here()))
        while True:
            name, *arguments = commands.get()
            rpc.write(connection, ("done", getattr(worker, name)(*arguments)))
    except BaseException:  # noqa: BLE001 (told to the run, with this instance's name)
        with contextlib.suppress(OSError):
            rpc.write(connection, ("failed", traceback.format_exc()))
    leaving.stopped()
    while True:
        with contextlib.suppress(Told):
            commands.get()  # for as long as the other side is there


def _aside(function: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=function, args=arguments, daemon=True).start()


def _stay_with(parent: int, leaving: Leaving) -> None:
    """End when the parent has: its connection may be held open by something that it forked."""
    while os.getppid() == parent:
        time.sleep(1.0)
    leaving.leave()


def _listen(connection: socket.socket, commands: queue.Queue[Any], leaving: Leaving) -> None:
    """Pass commands on; without anybody to give them, end."""
    while True:
        try:
            message = rpc.read(connection)
        except (EOFError, OSError):
            leaving.leave()
        else:
            commands.put(message)


class _Worker:
    """The commands that a worker understands."""

    def __init__(self, job: Job, arena_fd: int) -> None:
        import jax

        for name, value in job.config.items():
            if jax.config.values.get(name) != value:
                jax.config.update(name, value)
        from hocket.cluster.devices import find_devices
        from hocket.core.graph.trace import trace
        from hocket.core.plan.data import Plan
        from hocket.errors import PlanError
        from hocket.runtime.averaging import Members, Space
        from hocket.runtime.averaging.choice import Reduction
        from hocket.runtime.channels.packing import packs
        from hocket.runtime.compile.cache import enable_cache
        from hocket.runtime.free.mailbox import make_exchange
        from hocket.runtime.instance.interpreter import Instance
        from hocket.runtime.launch.memory_map import (
            layout,
            link_spaces,
            shared_board,
            shared_latest,
        )
        from hocket.runtime.launch.shipping import unpack
        from hocket.runtime.observe.status import names, new_statuses
        from hocket.system.shared_memory import Arena

        enable_cache()
        graph = trace(unpack(job.algorithm), job.num_envs, exact=job.exact, served=job.served)
        if graph.digest != job.digest:
            raise PlanError(
                f"{type(graph.algorithm).__name__} is another graph in this process "
                f"({graph.digest}) than in the one that started it ({job.digest}): does it depend "
                f"on something outside itself?"
            )
        plan = Plan.from_json(job.plan, graph)
        where, arena = layout(plan), Arena.attach(arena_fd, job.arena_bytes)
        assert where.nbytes == job.arena_bytes, "the parent lays its memory out in another way"
        devices = find_devices(plan.place(job.place).share(job.index))
        status = new_statuses(plan, arena.memory, where.statuses)
        average = None
        if job.place in plan.averaging:
            channel = plan.channel(job.place, job.place)
            average = Reduction(
                Space(arena, *where.averages[job.place]), Members.of(plan, job.place), job.index,
                plan.average_sites(job.place), channel.reduce, channel.delay,
            )  # fmt: skip
        mine = status[names(plan).index((job.place, job.index))]
        board = shared_board(plan, arena.memory, where)
        learner = plan.free[0] if plan.free else None
        asked = plan.channel(*plan.free).pack if plan.free else None
        packed = packs(asked, devices, sends=job.place == learner)
        latest = shared_latest(plan, arena.memory, where, packed=packed)
        spaces = link_spaces(arena, where)
        exchange = make_exchange(plan, job.place, job.index, mine, board, latest, spaces)
        self.instance = Instance(plan, job.place, job.index, exchange, average)
        self._average = average

    def take_leave(self, leaving: Leaving) -> None:
        """How this process ends: on a GPU, not in the midst of a program."""
        gpus = [d for d in self.instance.mesh.devices.flat if d.platform == "gpu"]
        if gpus:
            leaving.first = [self._average.close] if self._average else []
            leaving.synchronize = lambda: [synchronize(gpu.local_hardware_id) for gpu in gpus]

    def load(
        self, leaves: dict[int, Any], late: dict[str, Any], at: dict[str, Sequence[str]]
    ) -> None:
        from hocket.runtime.channels.host_arrays import from_host
        from hocket.runtime.channels.links import late_specs
        from hocket.runtime.host_calls.services import elsewhere

        plan = self.instance.plan
        self.instance.hosts.find = elsewhere(at, plan.serving, self.instance.index)
        values, specs = plan.graph.values, late_specs(plan)
        self.instance.load(
            {v: from_host(x, values[v]) for v, x in leaves.items()},
            {name: from_host(x, specs.get(name, x)) for name, x in late.items()},
        )

    def disconnect(self) -> None:
        self.instance.exchange.disconnect()

    def listen(self) -> Any:
        return self.instance.exchange.listen()

    def connect(self, addresses: Any, epoch: int) -> None:
        self.instance.exchange.connect(addresses, epoch)

    def compile(self) -> None:
        self.instance.compile()

    def measure(self) -> dict[str, float | str]:
        """What each way to average costs, together with the other replicas."""
        assert self._average
        return self._average.measure()

    def use(self, way: str) -> None:
        assert self._average
        self._average.use(way)

    def late(self) -> dict[str, Any]:
        from hocket.runtime.channels.host_arrays import to_host

        return {name: to_host(x) for name, x in self.instance.late().items()}

    def run(self, count: int | None) -> Any:
        return self.instance.run(count)

    def held(self) -> dict[int, Any]:
        from hocket.runtime.channels.host_arrays import to_host

        return {v: to_host(x) for v, x in self.instance.held().items()}

    def record(self) -> None:
        self.instance.exchange.spans = []

    def spans(self) -> Any:
        exchange = self.instance.exchange
        return exchange.spans or [], exchange.spans_left_out


if __name__ == "__main__":
    main()
