"""A replica for `check_average`: a process that averages when `average.py` tells it to.

python -m hocket.testing.replica CONNECTION MEMORY
"""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hocket.runtime.averaging import Joined, Listener, Members, Sites, Space
from hocket.runtime.averaging.known import find_way, roomy
from hocket.system.network import Network, set_network
from hocket.system.shared_memory import MemoryFile, pages

TURNS = 20
SMALL = [jax.ShapeDtypeStruct((1000,), jnp.float32)]
"""The array that is averaged in a loop, and in tests where another replica is missing."""
SITES: Sites = [
    [jax.ShapeDtypeStruct((57_288,), jnp.float32)],  # too large for a pipe
    [jax.ShapeDtypeStruct((), jnp.float32)],
    [jax.ShapeDtypeStruct((0,), jnp.float32)],
    [
        jax.ShapeDtypeStruct(shape, dtype)
        for shape, dtype in (
            ((3, 7), jnp.float32), ((9,), jnp.bfloat16), ((1,), jnp.float16), ((0,), jnp.bfloat16),
            ((5,), jnp.complex64),
        )
    ],
    SMALL,
]  # fmt: skip


class Job(NamedTuple):
    """The first message to a replica's process, which says what to run."""

    name: str
    members: Members
    replica: int
    room: int
    memory: int
    path: list[str]
    network: Network


def arrays(index: int) -> list[list[np.ndarray]]:
    """Return the arrays that a replica averages in each call outside of the program's loop."""
    random = np.random.default_rng(index)

    def array(x: Any) -> np.ndarray:
        imaginary = 1j if jnp.issubdtype(x.dtype, jnp.complexfloating) else 0
        return np.asarray(random.normal(size=x.shape) + index + imaginary * index).astype(x.dtype)

    return [[array(x) for x in site] for site in SITES[:-1]]


def expected_means(count: int) -> list[np.ndarray]:
    """Return the correct means for `count` replicas, computed by NumPy.

    The last one is the result of the program's loop, which averages in each turn.
    """
    trees = [arrays(index) for index in range(count)]
    means = [mean_of(xs) for site in zip(*trees, strict=True) for xs in zip(*site, strict=True)]
    x = np.arange(SMALL[0].size, dtype=np.float32)
    for _ in range(TURNS):
        x = mean_of([np.float32(0.5) * x + np.float32(index) for index in range(count)])
    return [*means, x]


def mean_of(xs: Sequence[np.ndarray]) -> np.ndarray:
    """Compute the mean as any averaging method must: in replica order, and at least in float32."""
    wide = np.result_type(xs[0].dtype, np.float32)
    return np.mean(np.stack([x.astype(wide) for x in xs]), 0).astype(xs[0].dtype)


class Replica:
    """The replica of this process. Its public methods are the commands that it is sent."""

    def __init__(self, job: Job, fd: int) -> None:
        sys.path[:0] = [path for path in job.path if path not in sys.path]
        set_network(job.network)
        self._job, self._file = job, MemoryFile.attach(fd, job.memory)
        self._device = job.members.device(job.replica)
        self._listener: Listener | None = None
        self._joined: Joined | None = None

    def listen(self, epoch: int) -> Any:
        room = pages(self._job.room)
        space = Space(self._file, epoch * room, room) if room else None
        way, members = find_way(self._job.name), self._job.members
        self._listener = way.listen(members, self._job.replica, roomy(SITES), space)
        return self._listener.address

    def join(self, addresses: Sequence[Any], epoch: int) -> None:
        assert self._listener
        self._joined = self._listener.join(addresses, epoch)

    def means(self) -> tuple[list[np.ndarray], tuple[int, int, int]]:
        joined, index = self._at_work, self._job.replica

        def turn(x: jax.Array, _: None) -> tuple[jax.Array, None]:
            return joined(0.5 * x + index)[0], None

        @jax.jit
        def program(sites: Any, x: jax.Array) -> Any:
            return [joined(*xs) for xs in sites], jax.lax.scan(turn, x, None, TURNS)[0]

        with jax.default_device(self._device):
            inputs = jax.tree.map(jnp.asarray, arrays(index)), jnp.arange(float(SMALL[0].size))
            runs = [jax.tree.leaves(jax.device_get(program(*inputs))) for _ in range(2)]
        joined.check()
        for first, second in zip(*runs, strict=True):
            np.testing.assert_array_equal(first, second, "the program's second run differs")
        return [np.asarray(x) for x in runs[1]], joined.counts()

    def free(self) -> None:
        self._at_work.free()

    def wait(self, size: int) -> str:
        """Try to average while a replica is missing or has an array of another size.

        This must be an error: return its text, or "" if there was none. After an error, leave.
        """
        try:
            with jax.default_device(self._device):
                jax.block_until_ready(jax.jit(self._at_work)(jnp.ones(size)))
            self._at_work.check()
        except Exception as error:  # noqa: BLE001
            self.leave()
            return f"{error}" or type(error).__name__
        return ""

    def leave(self) -> None:
        self._at_work.close()

    @property
    def _at_work(self) -> Joined:
        assert self._joined
        return self._joined


def main(connection: Connection, fd: int) -> None:
    """Carry out commands until the connection closes."""
    os.set_inheritable(connection.fileno(), False)
    # JAX logs the traceback of every callback that fails, and here some fail on purpose.
    logging.getLogger("jax._src.callback").setLevel(logging.CRITICAL)
    commands: queue.Queue[Any] = queue.Queue()
    try:
        replica = Replica(connection.recv(), fd)
        threading.Thread(target=_listen, args=(connection, commands, replica), daemon=True).start()
        connection.send(("done", None))
        while True:
            name, *arguments = commands.get()
            connection.send(("done", getattr(replica, name)(*arguments)))
    except BaseException:  # noqa: BLE001 (told to whoever started this process)
        connection.send(("failed", traceback.format_exc()))
        os._exit(1)


def _listen(connection: Connection, commands: queue.Queue[Any], replica: Replica) -> None:
    """Queue commands for the main thread. Carry out `close` here, as the main thread may be waiting
    for another replica.
    """
    while True:
        try:
            message = connection.recv()
        except (EOFError, OSError):
            os._exit(1)
        if message == ("close",):
            replica.leave()
        else:
            commands.put(message)


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])), int(sys.argv[2]))
