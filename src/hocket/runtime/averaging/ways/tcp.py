"""Means between machines, for replicas on CPUs: each pair of replicas has a TCP connection.

Each replica owns an equal part of the arrays. It receives that part from all the others, computes
the mean in the order of the replicas, and sends it back (`native/reduce_tcp.cpp`). So the means
have the same bits as those of `shm`. The connections begin with a greeting, like all connections of
a run (`hocket.system.network`). What they carry is neither encrypted nor signed.
"""

from __future__ import annotations

import ctypes
import secrets
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import NamedTuple

import jax

from hocket.runtime.averaging import Epoch, Members, Sites, Space, Unavailable
from hocket.runtime.averaging.groups import Group, register
from hocket.system.network.greeting import ConnectionId
from hocket.system.network.listener import Connection, listener
from hocket.system.ring import SPIN_NS

PURPOSE = "average"
SECONDS = 60.0
"""The seconds for which a replica waits for its connections, as others may still be starting."""


class Address(NamedTuple):
    """Where a replica listens for the replicas after it, and the name of its connections."""

    address: str
    name: str


class Tcp:
    """The way to average between machines."""

    name, preference = "tcp", 5

    def note(self, members: Members) -> str:
        return "through the network"

    def why_not(self, members: Members) -> str:
        if all(device is None or device.is_host for device in members.on):
            return ""
        return "it averages arrays of CPUs, and some of these replicas are on other devices."

    def is_choice(self, members: Members) -> bool:
        # Where memory is shared, no connection is as fast. So its trial would only take time.
        return not members.shares_memory

    def room(self, members: Members, sites: Sites) -> int:
        return 0

    def listen(
        self, members: Members, index: int, sites: Sites, space: Space | None
    ) -> TcpListener:  # fmt: skip
        if (platform := members.device(index).platform) != "cpu":
            raise Unavailable(f"it averages arrays of CPUs, and replica {index} has a {platform}")
        return TcpListener(members, index)


class TcpListener:
    """One replica that the replicas after it connect to. It connects to those before it."""

    def __init__(self, members: Members, index: int) -> None:
        self._members, self._index = members, index
        # A new name each time, so that no connection for an earlier group can be taken for one of
        # these.
        name, later = secrets.token_hex(16), range(index + 1, len(members))
        self._expected = {i: listener().expect(PURPOSE, f"{name} {i}") for i in later}
        at = next((expected.address for expected in self._expected.values()), "")
        self.address = Address(at, name)

    def join(self, addresses: Sequence[Address], epoch: Epoch) -> Connected:
        futures = {i: Future[Connection]() for i in range(len(self._members)) if i != self._index}
        for i, future in futures.items():
            use, fail = future.set_result, future.set_exception
            if i in self._expected:
                self._expected[i].open(epoch, use, fail)
            else:
                connection = ConnectionId(PURPOSE, f"{addresses[i].name} {self._index}", epoch)
                listener().begin(addresses[i].address, connection, SECONDS, use, fail)
        try:
            fds = _connected(futures)
        except Unavailable:
            self.close()
            for future in futures.values():  # also those that come later
                future.add_done_callback(_hang_up)
            raise
        return Connected(fds, len(self._members), self._index, self._members.delay)

    def close(self) -> None:
        for expected in self._expected.values():
            expected.close()


class Connected(Group):
    """Replica `index` of `replicas`, with a connection to each of the others.

    `fds` has the file descriptors of the connections. Every mean takes `delay` seconds longer.
    """

    target, counter = "hocket_reduce_tcp", "hocket_reduce_tcp_counts"

    def __init__(
        self, fds: Mapping[int, int], replicas: int, index: int, delay: float = 0.0
    ) -> None:
        super().__init__()
        register(self.target, "cpu")
        files = (ctypes.c_int * replicas)(*(fds.get(i, -1) for i in range(replicas)))
        given = replicas, index, files, SPIN_NS, int(1e9 * delay)
        self._group = self._library.hocket_reduce_tcp_join(*given)

    def __call__(self, *xs: jax.Array) -> list[jax.Array]:
        return self.of_leaves(xs)

    def close(self) -> None:
        self._library.hocket_reduce_tcp_close(self._group, False)

    def free(self) -> None:
        # The others may still be in their last mean, which this must not make fail.
        self._library.hocket_reduce_tcp_close(self._group, True)


AVERAGE = Tcp()


def _connected(futures: Mapping[int, Future[Connection]]) -> dict[int, int]:
    """Wait for all connections, and return the file descriptor of each."""
    deadline = time.monotonic() + SECONDS
    for i, future in futures.items():
        try:
            future.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            raise Unavailable(f"waited {SECONDS:g} s for a connection of replica {i}") from None
        except OSError as error:
            raise Unavailable(f"no connection to replica {i}: {error}") from None
    return {i: future.result().socket.detach() for i, future in futures.items()}


def _hang_up(future: Future[Connection]) -> None:
    if future.exception() is None:
        future.result().socket.close()
