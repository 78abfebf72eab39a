"""A replay server: it offers tables to other processes and machines.

    table = Table("obs:float32:4 action:int32", capacity=1_000_000)
    with serve(table, tcp="0.0.0.0:7777", unix="/run/replay.sock") as server:
        print(server.addresses)

It answers in a native thread that never takes Python's lock, so the process can compute meanwhile.
The process may also go on using the table itself.
"""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hocket.replay.store.access import Closing
from hocket.replay.store.table import Table, store

_NAME = re.compile(r"[\w.-]+")


class Server(Closing):
    """A replay server, which answers clients until it is closed. `serve` starts one."""

    def __init__(
        self, tables: Mapping[str, Table], *, tcp: str | None, unix: str | Path | None,
        udp: str | None, snapshots: Path | None, max_bytes: int, max_clients: int,
    ) -> None:  # fmt: skip
        self.tables = dict(tables)
        about = [
            (name, str(table.schema), table._native, *_files(snapshots, name))
            for name, table in tables.items()
        ]
        try:
            native = store().Server(about, max_bytes, max_clients, _SPIN)
            self.addresses = _listen(native, tcp, unix, udp)
        except RuntimeError as error:
            raise OSError(f"{error}.") from None
        native.start()
        self._native = native
        # The server also stops when nobody refers to it any more, and when Python ends.
        self._stop = weakref.finalize(self, native.stop)

    @property
    def address(self) -> str:
        """The fastest address for a client on this machine."""
        return self.addresses[0]

    def check(self) -> None:
        """Raise if the server has failed."""
        if problem := self._native.problem():
            raise RuntimeError(f"the replay server at {self.address} failed: {problem}.")

    def close(self) -> None:
        """Stop answering, and end all connections. The tables stay open."""
        self._stop()


def serve(
    tables: Table | Mapping[str, Table],
    *,
    tcp: str | None = None,
    unix: str | Path | None = None,
    udp: str | None = None,
    snapshots: str | Path | None = None,
    max_bytes: int = 2**30,
    max_clients: int = 1000,
) -> Server:
    """Serve one table, under the name `replay`, or several by name, at one address or more.

    `tcp` and `udp` are `HOST:PORT`; port 0 means any free port. Through the Unix socket `unix`,
    clients can also share memory with the server (`shm://PATH`). Clients can make the server save
    tables in the folder `snapshots`. No message may have more than `max_bytes`.
    """
    if tcp is None and unix is None and udp is None:
        raise ValueError(
            "a server needs an address: give `tcp=` or `udp=`, such as 127.0.0.1:7777, or a path "
            "as `unix=`."
        )
    named = {"replay": tables} if isinstance(tables, Table) else tables
    for name in named:
        if not _NAME.fullmatch(name):
            raise ValueError(f"`{name}` cannot name a table: use letters, digits, `.`, `-`, `_`.")
    if not 0 < len(named) < 2**16:
        raise ValueError(f"a server must have from 1 to 2**16 - 1 tables, found {len(named)}.")
    if not 2**12 <= max_bytes <= 2**40:
        raise ValueError(f"max_bytes must be from 2**12 to 2**40, found {max_bytes}.")
    folder = None if snapshots is None else Path(snapshots)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    return Server(
        named,
        tcp=tcp,
        unix=unix,
        udp=udp,
        snapshots=folder,
        max_bytes=max_bytes,
        max_clients=max_clients,
    )


_SPIN = 50e-6
"""Seconds that a server polls for requests before it sleeps: about as long as waking up takes."""


def snapshot_file(folder: Path, name: str) -> Path:
    """Return the file that a table of this name is saved to."""
    return folder / f"{name}.replay"


def tally_file(folder: Path, name: str) -> Path:
    """Return the file with the count of all rows ever inserted, which survives a crash."""
    return folder / f"{name}.inserts"


def _files(folder: Path | None, name: str) -> tuple[str, str]:
    if folder is None:
        return "", ""
    return os.fspath(snapshot_file(folder, name)), os.fspath(tally_file(folder, name))


def _listen(
    native: Any, tcp: str | None, unix: str | Path | None, udp: str | None
) -> tuple[str, ...]:
    addresses = []
    if unix is not None:
        native.listen_unix(os.fsdecode(unix))
        addresses += [f"shm://{os.fsdecode(unix)}", f"unix://{os.fsdecode(unix)}"]
    for carrier, where in (("tcp", tcp), ("udp", udp)):
        if where is None:
            continue
        host, _, port = where.rpartition(":")
        if not host or not port.isdigit() or int(port) >= 2**16:
            raise ValueError(
                f"{carrier}={where!r}: write HOST:PORT, such as 127.0.0.1:7777 or 0.0.0.0:0."
            )
        listen = native.listen_tcp if carrier == "tcp" else native.listen_udp
        addresses.append(f"{carrier}://{host}:{listen(host.strip('[]'), int(port))}")
    return tuple(addresses)
