"""A steward: the process on each node of a cluster that starts the node's workers.

    python -m hocket.system.steward

A launcher starts one on every node, and writes a `Setup` to its input. The steward prints the
address at which it listens, and the run connects to it. From then on, all messages between the run
and the workers of the node pass through the steward, which does not read them. A worker gets them
through a Unix socket, as on one machine. The steward also tells the run which workers have ended
and how, and what they print. If it hears nothing from the run for the seconds of its lease, it ends
its workers and itself, so that nothing is left of a run whose machine is gone.

It imports no JAX. So it starts at once, and no tracing or compiling keeps it from answering.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pickle
import queue
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hocket.system.as_child import expect_run, leave_signals
from hocket.system.children import Child
from hocket.system.code.cache import CodeCache, cache_folder
from hocket.system.cores import keep_to_cores, usable_cores
from hocket.system.messages import MessageSocket
from hocket.system.network import Network, local
from hocket.system.nodes.versions import versions
from hocket.system.shared_memory import MemoryFile

PURPOSE = "steward"
"""The purpose of the connection between a run and a steward, as their greeting names it."""
NODE = "HOCKET_NODE"
"""The environment variable in which a worker finds the name of its node."""
BEAT_SECONDS = 1.0
"""Seconds between two signs of life, which a run and its stewards send each other."""
PART_BYTES = 1 << 22
"""The most bytes of a message about a worker that are sent at once."""
ACCEPT_SECONDS = 60.0
"""Seconds that a worker has to print its address, and a run to connect to its steward."""
CACHE_ADVICE = "Set XDG_CACHE_HOME on the node to a folder that can be written and has room."


class Setup(NamedTuple):
    """The settings of a steward, which come through its input, where nobody else can read them."""

    node: str
    lease: float
    """Seconds of silence after which the steward ends its workers and itself."""
    network: Network
    """The address to listen at, and the secret of the run."""


class Order(NamedTuple):
    """The order to start one worker."""

    name: str
    module: str
    """The program, `python -m MODULE FOLDER PARENT NAME`. It listens in FOLDER and prints where."""
    env: Mapping[str, str]
    """The variables that differ from the steward's own."""
    shares: int
    """The number of workers, itself included, that share the cores of the node."""
    memory_nbytes: int
    """The bytes of the memory that all workers of the node see; 0 for none."""


def in_parts(what: str, name: str, message: bytes) -> Iterator[tuple[str, str, bytes]]:
    """Yield a message about a worker in parts, so that signs of life can pass between them."""
    *first, last = range(0, max(1, len(message)), PART_BYTES)
    for start in first:
        yield "part", name, message[start : start + PART_BYTES]
    yield what, name, message[last:]


class Silence:
    """How long the other side has been silent, to end a wait for it after the lease."""

    def __init__(self) -> None:
        self.allowed = False
        """True while the other side is suspended, and cannot give signs of life."""
        self._heard, self._silent = True, 0

    def heard(self) -> None:
        self._heard = True

    def seconds(self) -> float:
        """Return the seconds of silence. To be called every BEAT_SECONDS.

        Calls are counted instead of asking a clock: if this process itself was suspended, no time
        has passed in which it could have heard anything.
        """
        self._silent = 0 if self._heard or self.allowed else self._silent + 1
        self._heard = False
        return self._silent * BEAT_SECONDS


class Steward:
    """The workers of one node, and the connection to the run that they work for."""

    def __init__(self, setup: Setup, run: MessageSocket) -> None:
        self._setup, self._run, self._silence = setup, run, Silence()
        self._workers: dict[str, WorkerProcess] = {}
        self._memory: MemoryFile | None = None
        self._code, self._folders = CodeCache(cache_folder()), list[str]()

    def serve(self) -> None:
        """Obey the run until it hangs up, then end everything."""
        for target in (self._beat, self._keep_lease):
            threading.Thread(target=target, daemon=True).start()
        try:
            while True:
                command, *arguments = self._run.read()
                self._silence.heard()
                getattr(self, command)(*arguments)
        except EOFError:
            self.end()
        except BaseException:  # noqa: BLE001 (the run tells the last lines, as of any end)
            traceback.print_exc()
            self.end(1)

    def beat(self) -> None:
        """Do nothing: this message is only a sign of life."""

    def allow_silence(self, allowed: bool) -> None:
        """Bear any silence while the run is suspended, as after Ctrl-Z."""
        self._silence.allowed = allowed

    def find_code(self, digests: Sequence[str]) -> None:
        """Answer which archives of code this node lacks."""
        self.tell("answer", self._code.lacking(digests))

    def add_code(self, digest: str, chunk: bytes) -> None:
        """Take the next bytes of an archive of code."""
        self._code.add(digest, chunk)

    def use_code(self, digests: Sequence[str], modules: Sequence[str]) -> None:
        """Let workers find this code. Answer where it is, and which of these modules are absent."""
        # In a thread: a slow file system must not keep this process from hearing the run.
        threading.Thread(target=self._use_code, args=(digests, modules), daemon=True).start()

    def _use_code(self, digests: Sequence[str], modules: Sequence[str]) -> None:
        try:
            self._folders = self._code.folders(digests)
            sys.path += self._folders
            absent = [module for module in modules if importlib.util.find_spec(module) is None]
        except OSError as error:
            self.tell("answer", ([], [], f"{error}. {CACHE_ADVICE}"))
        except (ValueError, ImportError) as error:
            self.tell("answer", ([], [], str(error)))
        else:
            self.tell("answer", (self._folders, absent, ""))

    def start(self, order: Order) -> None:
        if self._memory is None and order.memory_nbytes:
            self._memory = MemoryFile.create(order.memory_nbytes)
        cores = max(1, usable_cores() // order.shares)
        path = [*self._folders, *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {"PJRT_NPROC": str(cores), **os.environ, **order.env, NODE: self._setup.node}
        env |= {"PYTHONPATH": os.pathsep.join(path)} if path else {}
        self._workers[order.name] = WorkerProcess(order, env, self.tell)

    def part(self, name: str, message: bytes) -> None:
        self._workers[name].parts.append(message)

    def write(self, name: str, message: bytes) -> None:
        parts = self._workers[name].parts
        self._workers[name].outgoing.put(b"".join([*parts, message]))
        parts.clear()

    def give_memory(self, name: str) -> None:
        assert self._memory is not None
        self._workers[name].outgoing.put(self._memory.fd)

    def hang_up(self, name: str) -> None:
        self._workers[name].outgoing.put(None)

    def kill(self, name: str) -> None:
        self._workers[name].child.kill(0.0)

    def tell(self, *message: Any) -> None:
        """Send a message to the run. If the run is gone, reading from it shows that."""
        with contextlib.suppress(OSError):
            self._run.write(message)

    def end(self, code: int = 0) -> None:
        """End all workers and this process. Called by any thread; never returns."""
        for worker in list(self._workers.values()):
            worker.child.kill(1.0)
            worker.remove_folder()
        os._exit(code)

    # Two threads, because `tell` waits while the run reads nothing, as when it is frozen.
    def _beat(self) -> None:
        while True:
            self.tell("beat")
            time.sleep(BEAT_SECONDS)

    def _keep_lease(self) -> None:
        """End everything when the run has been silent for too long."""
        while self._silence.seconds() < self._setup.lease:
            time.sleep(BEAT_SECONDS)
        self.end()


class WorkerProcess:
    """One worker of the node: its process, and the messages on their way to it and from it."""

    def __init__(self, order: Order, env: Mapping[str, str], tell: Callable[..., None]) -> None:
        self._name, self._tell = order.name, tell
        self.outgoing: queue.SimpleQueue[bytes | int | None] = queue.SimpleQueue()
        """Messages for the worker, a file descriptor to give it, or None to hang up."""
        self.parts: list[bytes] = []
        """The parts, so far, of a message for the worker that comes in several."""
        # For its socket. If this process is killed before it connects, the worker removes it.
        self._folder = Path(tempfile.mkdtemp(prefix="hocket-"))
        # -P: modules in the working folder of a node are none of the run's.
        argv = (
            sys.executable,
            "-P",
            "-m",
            order.module,
            str(self._folder),
            str(os.getpid()),
            order.name,
        )
        self.child = Child(argv, env, says=lambda *line: tell("line", order.name, *line))
        for target in (self._report_end, self._pass_on):
            threading.Thread(target=target, daemon=True).start()

    def remove_folder(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _report_end(self) -> None:
        self.child.popen.wait()
        self._tell("ended", self._name, *(self.child.poll() or ("ended", "")))

    def _pass_on(self) -> None:
        """Connect to the worker, and pass messages both ways."""
        try:
            address = self.child.first_line(ACCEPT_SECONDS)
            connection = local.connect(address, ACCEPT_SECONDS)
        except (OSError, ValueError) as error:  # ValueError: its first line is no address
            self._tell("unreachable", self._name, str(error))
            return
        finally:
            self.remove_folder()
        threading.Thread(target=self._pass_back, args=(connection,), daemon=True).start()
        with contextlib.suppress(OSError):
            while (message := self.outgoing.get()) is not None:
                if isinstance(message, int):
                    connection.send_fd(message)
                else:
                    connection.write_bytes(message)
        connection.close()

    def _pass_back(self, connection: MessageSocket) -> None:
        with contextlib.suppress(EOFError):
            while True:
                for part in in_parts("said", self._name, connection.read_bytes()):
                    self._tell(*part)
        self._tell("hung_up", self._name)


def main() -> None:
    """Serve one run, and end with it."""
    leave_signals()
    keep_to_cores()
    setup: Setup = pickle.loads(sys.stdin.buffer.read())
    expected = expect_run(setup.network, PURPOSE, setup.node)
    run = expected.accept(ACCEPT_SECONDS).signed()
    run.write(versions())
    Steward(setup, run).serve()


if __name__ == "__main__":
    main()
