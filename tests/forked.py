"""A launcher for tests whose processes are forked from one that has imported JAX and hocket.

Otherwise these imports are a third of what a short run in processes costs. Everything after them is
as with `processes`: the worker, its connection and its shared memory.
"""

from __future__ import annotations

import atexit
import functools
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from hocket.core.plan.data import Launch, Plan
from hocket.runtime.launch import Command, Fate, Seat, launch_named

ROOT = Path(__file__).parents[1]
NAME = "tests.forked:Forked"
MOST = 1 << 20  # bytes of a request


def quick(launch: str) -> Launch:
    """The launcher of this name; for `processes`, one that starts them sooner."""
    return launch_named(NAME if launch == "processes" else launch)


class Forked:
    """Starts each seat as a fork of one process, which has begun no program of its own."""

    launch = Launch("forked", one_process=False, one_program=False, shares_memory="node")

    def why_not(self, plan: Plan) -> str:
        return ""

    def reserve(self, seats: Sequence[Seat], seconds: float) -> None:
        pass

    def start(self, seat: Seat, command: Command) -> ForkedMember:
        return ForkedMember(command)

    def release(self) -> None:
        pass


class ForkedMember:
    """A forked process, known by its pid and by a descriptor that tells when it has ended."""

    def __init__(self, command: Command) -> None:
        read, write = os.pipe()
        request = pickle.dumps((command.argv[3:], dict(command.env)))
        socket.send_fds(parent_of_forks(), [request], [write])
        os.close(write)
        self._output: IO[str] = os.fdopen(read)
        self.pid = int.from_bytes(parent_of_forks().recv(8), "little")
        self._ended = os.pidfd_open(self.pid)

    def __del__(self) -> None:
        os.close(self._ended)
        self._output.close()

    def hello(self, seconds: float) -> str:
        if not select.select([self._output], [], [], seconds)[0]:
            raise TimeoutError(f"process {self.pid} said nothing for {seconds:g} s")
        return self._output.readline().strip()

    def poll(self) -> Fate | None:
        return Fate(f"process {self.pid} ended") if self._has_ended(0.0) else None

    def kill(self, seconds: float) -> bool:
        signal.pidfd_send_signal(self._ended, signal.SIGKILL)
        return self._has_ended(seconds)

    def _has_ended(self, seconds: float) -> bool:
        return bool(select.select([self._ended], [], [], seconds)[0])


@functools.cache
def parent_of_forks() -> socket.socket:
    """The connection to the process that forks; it ends with this one, which closes the other."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # A test may have another working folder, from which there is no package `tests`.
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path}
    with its:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(its.fileno())], pass_fds=[its.fileno()],
            stdin=subprocess.DEVNULL, start_new_session=True, env=env,
        )  # fmt: skip

    def end() -> None:
        ours.close()
        process.wait(20)

    atexit.register(end)
    return ours


def serve(requests: socket.socket) -> None:
    """Fork for every request, until there is nobody to make one."""
    import jax

    import hocket.runtime.launch.worker  # noqa: F401
    from hocket.runtime.launch import process
    from hocket.testing import SMALL

    # Forks trace these sooner, because JAX keeps the traces of the functions that they call.
    for name, num_envs in (("ppo", 8), ("ppo", 4), ("ppo", 16), ("dqn", 8)):
        traced(SMALL[name](), num_envs)

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a fork ended
    while True:
        request, descriptors, _, _ = socket.recv_fds(requests, MOST, 1)
        if not request:
            return
        (output,) = descriptors
        if pid := os.fork():
            os.close(output)
            requests.send(pid.to_bytes(8, "little"))
            continue
        requests.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        arguments, environment = pickle.loads(request)
        os.environ.clear()
        os.environ.update(environment)
        config: Any = jax.config
        config.update("jax_platforms", environment.get("JAX_PLATFORMS"))
        os.setsid()
        os.dup2(output, 1)
        sys.argv = [process.__name__, *arguments]
        process.main()


def traced(algorithm: Any, num_envs: int) -> None:
    """Trace the step of an algorithm, without a device: no fork could use the parent's."""
    import jax

    state = jax.eval_shape(lambda: algorithm.init(jax.random.key(0), num_envs))
    jax.make_jaxpr(lambda state: algorithm.step(state))(state)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
