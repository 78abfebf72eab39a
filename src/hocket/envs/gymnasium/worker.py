"""A worker process for environments: `python -m hocket.envs.gymnasium.worker SOCKET PARENT`.

It makes its share of the environments, and carries out commands until its parent process ends.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from socket import socket
from typing import NamedTuple

import cloudpickle
import numpy as np

from hocket.envs.gymnasium.block import EnvFault, MakeBlock, StepRows
from hocket.envs.gymnasium.spaces import Actions, Observations
from hocket.system.as_child import leave_signals, say_hello, wait_for_end_of
from hocket.system.messages import MessageSocket
from hocket.system.ring import Spec, slot_layout
from hocket.system.shared_memory import MemoryFile


@dataclass(frozen=True)
class SharedArrays:
    """The layout of the memory that the workers share with their parent."""

    observations: Observations
    actions: Actions
    num_envs: int
    workers: int

    @property
    def nbytes(self) -> int:
        return slot_layout(self._specs())[1]

    def arrays(self, file: MemoryFile) -> tuple[list[np.ndarray], StepRows, np.ndarray]:
        """Return the actions, the results, and the number of each worker's current environment."""
        specs = self._specs()
        starts, _ = slot_layout(specs)
        arrays = [
            np.ndarray(shape, dtype, file.memory, start)
            for (shape, dtype), start in zip(specs, starts, strict=True)
        ]
        num_actions, num_obs = len(self.actions.leaves), len(self.observations.leaves)
        actions, obs = arrays[:num_actions], arrays[num_actions : num_actions + num_obs]
        final, (reward, terminated, truncated, at) = arrays[num_actions + num_obs : -4], arrays[-4:]
        return actions, StepRows(obs, reward, terminated, truncated, final), at

    def _specs(self) -> list[Spec]:
        n, observed = (self.num_envs,), self.observations.leaves
        leaves = [*self.actions.leaves, *observed, *observed]
        flags = [(n, np.float32), (n, np.bool_), (n, np.bool_), ((self.workers,), np.int32)]
        return [*((n + leaf.shape, leaf.dtype) for leaf in leaves), *flags]


class Share(NamedTuple):
    """The message that tells a worker which environments to make.

    Right after it, the parent sends the file descriptor of the shared memory.
    """

    make_block: MakeBlock
    memory: SharedArrays
    of: slice
    """The range of environments that this worker steps."""
    number: int
    """The index of this worker among all workers."""


class SharedBlock:
    """A block whose actions and results are in shared memory."""

    def __init__(self, share: Share, fd: int) -> None:
        actions, rows, at = share.memory.arrays(MemoryFile.attach(fd, share.memory.nbytes))
        of, at = share.of, at[share.number : share.number + 1]
        self._actions, self._rows = [x[of] for x in actions], rows.part(of)
        block = share.make_block(of.stop - of.start, at)
        self._block, self.snapshot, self.restore = block, block.snapshot, block.restore

    def reset(self, seeds: Sequence[int]) -> None:
        self._block.reset(seeds, self._rows.obs)

    def step(self) -> None:
        self._block.step(self._actions, self._rows)

    def close(self) -> None:
        self._block.close()
        os._exit(0)  # at once, because the parent waits for the end of this process


def main() -> None:
    """Make one share of the environments, and carry out commands."""
    leave_signals()
    fd, parent = map(int, sys.argv[1:])
    os.set_inheritable(fd, False)  # an environment's processes would keep the connection open
    threading.Thread(target=_stay_with, args=(parent,), daemon=True).start()
    say_hello("here")
    line = MessageSocket(socket(fileno=fd))
    try:
        _serve(line)
    except (EOFError, ConnectionError):
        os._exit(0)  # the parent is gone; exit at once, so that no environment can delay it


def _serve(line: MessageSocket) -> None:
    sys.path[:0] = [path for path in line.read() if path not in sys.path]
    try:
        block = SharedBlock(cloudpickle.loads(line.read()), line.receive_fd())
        line.write(None)
        while True:
            name, *arguments = line.read()
            line.write(getattr(block, name)(*arguments))
    except EnvFault as fault:
        line.write(fault)
    except (EOFError, ConnectionError):
        raise
    except BaseException:  # noqa: BLE001 (raised in the parent, which waits for the answer)
        line.write(EnvFault(None, f"could not be served:\n{traceback.format_exc()}"))
    line.read()  # waits until the parent closes the connection or ends


def _stay_with(parent: int) -> None:
    """End this process when the parent ends, even while an environment is busy or hangs."""
    wait_for_end_of(parent)
    os._exit(1)


if __name__ == "__main__":
    main()
