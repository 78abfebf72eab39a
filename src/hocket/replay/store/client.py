"""A replay table at a server, used like one in this process.

    replay = connect("shm:///run/replay.sock")         # on this machine
    replay = connect("tcp://learner-1:7777", table="sequences")
    replay.insert({"obs": obs, "action": action}, priority)
    batch = replay.sample(256)
    replay.update(batch.keys, priority)

The command `hocket replay serve` starts a server, and so does `hocket.replay.serve` in a program.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hocket.errors import unknown
from hocket.replay.store.access import Access, Batch, seconds_of
from hocket.replay.store.schema import Schema
from hocket.replay.store.table import store

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ALIGNED = 64
"""The alignment in bytes of each array of a reply in shared memory."""
_MOST_AHEAD = 32


def connect(address: str, *, table: str | None = None, timeout: float = 10.0) -> Client:
    """Connect to a table at `shm://PATH`, `unix://PATH`, `tcp://HOST:PORT` or `udp://HOST:PORT`.

    `shm` shares memory with a server on this machine, and `unix` copies through its socket. `udp`
    sends lost packets again, and treats a server that is silent for 5 s as dead. `table` may be
    left out if the server has only one. Connecting may take up to `timeout` seconds.
    """
    seconds = seconds_of(timeout)
    native = _connected(address, seconds)
    tables = _tables(native, seconds)
    if table is None and len(tables) > 1:
        raise ValueError(f"{address} has the tables {', '.join(tables)}: choose one with `table=`.")
    name = next(iter(tables)) if table is None else table
    if name not in tables:
        raise ValueError(f"{unknown('table', name, tables)} These are at {address}.")
    number, schema = tables[name]
    return Client(native, address, name, number, schema)


def tables_at(address: str, *, timeout: float = 10.0) -> list[str]:
    """Return the names of a server's tables."""
    seconds = seconds_of(timeout)
    with closing(_connected(address, seconds)) as native:
        return list(_tables(native, seconds))


class Client(Access):
    """A table at a server; see `connect`. Threads may share one.

    Over `shm`, the arrays of a sample lie in memory that the server writes to. The memory is
    reused once nobody refers to these arrays any more. So if a batch is put on a CPU device without
    copying, keep the batch until the computation is done.
    """

    def __init__(self, native: Any, address: str, name: str, number: int, schema: str) -> None:
        self.address, self.name = address, name
        self._connection = native
        parsed = Schema.parse(schema)
        columns = [(column.bytes, column.frames) for column in parsed.columns]
        remote = store().Remote(client=native, table=number, schema=schema, columns=columns)
        self._use(remote, parsed)
        self.size, self.total = 0, 0.0
        """The number of rows and the sum of their priorities, at the time of the last sample."""

    def batches(self, num: int, *, ahead: int = 2, timeout: float | None = None) -> Iterator[Batch]:
        if ahead > _MOST_AHEAD:
            raise ValueError(f"ahead={ahead} must be from 1 to {_MOST_AHEAD}.")
        return super().batches(num, ahead=ahead, timeout=timeout)

    def save(self) -> None:
        """Make the server save the table in its folder of snapshots, and wait until it has."""
        _said(self._native, "SAVE", math.inf)

    def clear(self) -> None:
        _said(self._native, "RESET")

    def close(self) -> None:
        self._connection.close()

    def info(self) -> dict[str, Any]:
        """Return the counts of a table, and those of the server: clients, requests and limits."""
        lines = (line.split() for line in _said(self._native, "INFO").splitlines())
        return {name: float(x) if name in _FLOATS else int(x) for name, x in lines}

    def __repr__(self) -> str:
        return f"Client({self.address!r}, table={self.name!r}, {str(self.schema)!r})"

    def _ask(
        self, num: int, uniforms: NDArray[np.float32] | None, out: Batch | None, seconds: float
    ) -> Callable[[], Batch]:
        if out is None and not self._native.may_stay():
            out = self._batch(num)
        to = (None,) * 3 if out is None else (out.keys, out.probability, self._columns(out))
        asked = self._native.ask_sample(num, uniforms, *to, seconds)
        return partial(self._take, asked, num, out, seconds)

    def _take(self, asked: Any, num: int, out: Batch | None, seconds: float) -> Batch:
        evenly, self.size, self.total = self._told(asked.take(), seconds)
        if out is None:
            return self._views(asked, num, evenly)
        return out if evenly == out.evenly else Batch(out.rows, out.keys, out.probability, evenly)

    def _views(self, memory: Any, num: int, evenly: bool) -> Batch:
        """Return a batch whose arrays are views of `memory`.

        The memory is not reused while any of these arrays exists.
        """
        offset = 0

        def view(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
            nonlocal offset
            array = np.ndarray((num, *shape), dtype, memory, offset)
            offset += -(-array.nbytes // _ALIGNED) * _ALIGNED
            return array

        keys, probability = view(np.dtype(np.uint32), (2,)), view(np.dtype(np.float32), ())
        rows = {c.name: view(c.dtype, c.drawn) for c in self.schema.columns}
        return Batch(rows, keys, probability, evenly)


def _said(remote: Any, op: str, seconds: float = 30.0) -> str:
    """Make a request without arrays, and return the text of the answer."""
    status, why, text = remote.say(getattr(store(), op), seconds)
    if status != 0:
        raise ValueError(f"{why}.")
    return text


_FLOATS = ("highest", "total", "samples_per_insert", "least", "most")


def _connected(address: str, seconds: float) -> Any:
    carrier, _, where = address.partition("://")
    if carrier not in _CARRIERS or not where:
        raise ValueError(
            f"`{address}` is no address of a replay server: write shm://PATH, unix://PATH, "
            f"tcp://HOST:PORT, udp://HOST:PORT, or dpdk://PATH with the socket of a relay."
        )
    if carrier == "shm":
        return store().connect_shm(where, _SLOTS, seconds)
    if carrier in ("unix", "dpdk"):
        return store().connect_unix(where)
    host, _, port = where.rpartition(":")
    if not host or not port.isdigit() or int(port) >= 2**16:
        raise ValueError(f"`{address}` needs a host and a port: {carrier}://HOST:PORT.")
    if carrier == "udp":
        return store().connect_udp(host.strip("[]"), int(port))
    return store().connect_tcp(host.strip("[]"), int(port), seconds)


_CARRIERS = ("shm", "unix", "tcp", "udp", "dpdk")
_SLOTS = 64
"""The number of requests that one region of shared memory has room for. Only requests in the same
region keep their order, so this number is large. Unused slots cost nothing."""


def _tables(native: Any, seconds: float) -> dict[str, tuple[int, str]]:
    """Return the tables of a server: for each name, the table's index and its schema."""
    text = _said(store().Remote(native, 0, "", []), "HELLO", seconds)
    lines = (line.split(" ", 2) for line in text.splitlines())
    return {name: (number, schema) for number, (name, _, schema) in enumerate(lines)}
