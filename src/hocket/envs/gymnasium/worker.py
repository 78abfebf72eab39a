"""A worker process for environments: `python -m hocket.envs.gymnasium.worker SOCKET MEMORY PARENT`.

It makes its share of the environments, and does as it is told until whoever started it is gone.
"""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import cloudpickle
import numpy as np

from hocket.envs.gymnasium.block import EnvFault, MakeBlock, Rows
from hocket.envs.gymnasium.spaces import Actions, Observations
from hocket.envs.host import ALIGNMENT

STEP = b"step"
"""The command that comes by far the most often; the others are pickled."""
DONE = b""
"""The answer to it."""


class Share(NamedTuple):
    """What one worker is told at the beginning."""

    make_block: MakeBlock
    memory: SharedMemory
    of: slice
    number: int
    """Of the worker."""


@dataclass(frozen=True)
class SharedMemory:
    """Where everything stands in the memory that all workers share."""

    observations: Observations
    actions: Actions
    num_envs: int
    workers: int

    @property
    def nbytes(self) -> int:
        return sum(self._sizes())

    def arrays(self, memory: Any) -> tuple[list[np.ndarray], Rows, np.ndarray]:
        """Actions, results, and which environment each worker is at."""
        found: list[np.ndarray] = []
        start = 0
        for (shape, dtype), size in zip(self._specs(), self._sizes(), strict=True):
            found.append(np.ndarray(shape, dtype, memory, start))
            start += size
        acts, seen = len(self.actions.leaves), len(self.observations.leaves)
        actions, obs = found[:acts], found[acts : acts + seen]
        final, (reward, terminated, truncated, at) = found[acts + seen : -4], found[-4:]
        return actions, Rows(obs, reward, terminated, truncated, final), at

    def _specs(self) -> list[tuple[tuple[int, ...], Any]]:
        n, observed = (self.num_envs,), self.observations.leaves
        leaves = [*self.actions.leaves, *observed, *observed]
        flags = [(n, np.float32), (n, np.bool_), (n, np.bool_), ((self.workers,), np.int32)]
        return [*((n + leaf.shape, leaf.dtype) for leaf in leaves), *flags]

    def _sizes(self) -> Iterator[int]:
        for shape, dtype in self._specs():
            nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
            yield -(-nbytes // ALIGNMENT) * ALIGNMENT


def main() -> None:
    """Serve one share."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    # As is SIGTERM. It is not ignored, since what an environment starts would ignore it as well.
    signal.signal(signal.SIGTERM, lambda *_: None)
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    socket, memory, parent = map(int, sys.argv[1:])
    for fd in (socket, memory):
        os.set_inheritable(fd, False)  # what an environment starts has nothing to do with them
    threading.Thread(target=_stay_with, args=(parent,), daemon=True).start()
    connection = Connection(socket)
    try:
        _serve(connection, memory)
    except (EOFError, ConnectionResetError, BrokenPipeError):
        os._exit(0)  # nobody is there any more; no environment may hold this up


def _serve(connection: Connection, memory: int) -> None:
    sys.path[:0] = [path for path in connection.recv() if path not in sys.path]
    try:
        share: Share = cloudpickle.loads(connection.recv_bytes())
        actions, rows, at = share.memory.arrays(mmap.mmap(memory, share.memory.nbytes))
        of, at = share.of, at[share.number : share.number + 1]
        block = share.make_block(of.stop - of.start, at)
        mine, rows = [x[of] for x in actions], rows.part(of)
        connection.send_bytes(pickle.dumps(None))
        while True:
            command = connection.recv_bytes()
            if command == STEP:
                block.step(mine, rows)
                connection.send_bytes(DONE)
                continue
            name, argument = pickle.loads(command)
            match name:
                case "reset":
                    answer: Any = block.reset(argument, rows.obs)
                case "snapshot":
                    answer = block.snapshot()
                case "restore":
                    answer = block.restore(argument)
                case _:
                    block.close()
                    os._exit(0)  # at once: whoever closes waits for this
            connection.send_bytes(pickle.dumps(answer))
    except EnvFault as fault:
        connection.send_bytes(pickle.dumps(fault))
    except (EOFError, ConnectionResetError, BrokenPipeError):
        raise
    except BaseException:  # noqa: BLE001 (raised by whoever waits for the answer)
        text = f"could not be served:\n{traceback.format_exc()}"
        connection.send_bytes(pickle.dumps(EnvFault(None, text)))
    connection.recv_bytes()  # for as long as the other side is there


def _stay_with(parent: int) -> None:
    """End when the parent has, also while an environment is busy or hangs."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


if __name__ == "__main__":
    main()
