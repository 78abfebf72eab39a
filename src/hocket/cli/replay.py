"""`hocket replay`: a replay server that a person starts, and what is in one."""

from __future__ import annotations

import signal
import struct
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import tyro

from hocket.errors import unknown
from hocket.replay.store.client import Client, connect, tables_at
from hocket.replay.store.server import Server, serve, snapshot_file, tally_file
from hocket.replay.store.table import Select, Table

ACTIONS = {
    "serve": "start a server, which ends with Ctrl-C",
    "info": "show the tables of a server, and how fast they are used",
}

HELP = """usage: hocket replay ACTION ...

Replay as a service: actors insert, learners sample, over shared memory or a network.

{actions}

    hocket replay serve --schema obs:float32:4 action:int32 --capacity 1000000
    hocket replay info tcp://127.0.0.1:7777

In a program: hocket.replay.connect("tcp://127.0.0.1:7777").
"""


def replay_command(arguments: list[str]) -> None:
    """Start a replay server, or look into one."""
    if not arguments or arguments[0] in ("-h", "--help"):
        rows = (f"  {name:<8}{text}" for name, text in ACTIONS.items())
        print(HELP.format(actions="\n".join(rows)))
        return
    action, *rest = arguments
    if action not in ACTIONS:
        raise ValueError(unknown("action of `hocket replay`", action, ACTIONS))
    {"serve": _serve, "info": _info}[action](rest)


@dataclass(frozen=True)
class TableOptions:
    """A table."""

    schema: tuple[str, ...] = ()
    """The columns of a row. Each is name:dtype:shape, or name:dtype where it is one number:
    obs:float32:4 image:uint8:84x84x3 action:int32. A dtype is one of numpy's, or bfloat16.
    Frames that rows share are stored once: four of 84 x 84 are image:uint8:84x84*4."""
    capacity: int = 1_000_000
    """Rows that there may be."""
    sampler: Select = "prioritized"
    """Which rows are drawn."""
    remover: Select = "oldest"
    """Which rows make room."""
    max_times_sampled: int = 0
    """How often a row is drawn before it is removed; 0 for as often as it happens."""
    min_size: int = 1
    """Rows before the first sample."""
    samples_per_insert: float | None = None
    """Rows sampled for each one inserted; whoever is ahead waits."""
    tolerance: float | None = None
    """By how many samples one may be ahead."""
    num_frames: int | None = None
    """Frames that are kept; by default twice the capacity."""
    seed: int = 0
    """The seed of the draws."""


@dataclass(frozen=True)
class Serve:
    """Start a replay server, with one table or with those of a file. It ends with Ctrl-C."""

    table: tyro.conf.OmitArgPrefixes[TableOptions]
    name: str = "replay"
    """The name of the table."""
    tables: Path | None = None
    """Instead of one table: a TOML file with a section for each, named as it is, with such options:
    [replay] schema = "obs:float32:4 action:int32", capacity = 1000."""
    host: str = "127.0.0.1"
    """Where to listen: 0.0.0.0 for all of the machine's addresses. Whoever reaches it may read and
    write: there is no password."""
    port: int = 7777
    """0 for one that is free; -1 for none."""
    udp_port: int = -1
    """To listen for packets as well (udp://HOST:PORT): 0 for one that is free; -1 for none."""
    unix: Path | None = None
    """The path of a Unix socket, over which clients on this machine share memory (shm://PATH)."""
    snapshot_dir: Path | None = None
    """Where tables are saved, and restored from when the server starts."""
    snapshot_every: float = 600.0
    """Seconds between snapshots; 0 for only at the end, and when a client asks."""
    max_bytes: int = 2**30
    """The size of one request or reply at most."""
    max_clients: int = 1000
    """Connections at a time, and as many over UDP."""


def _serve(arguments: list[str]) -> None:
    command = tyro.cli(Serve, args=arguments, prog="hocket replay serve")
    options = {command.name: command.table}
    if command.tables is not None:
        if command.table.schema:
            raise ValueError("--tables says what the tables are: leave --schema out.")
        options = _read(command.tables)
    tcp = _where("--port", command.host, command.port)
    udp = _where("--udp-port", command.host, command.udp_port)
    if not command.snapshot_every >= 0:
        raise ValueError(f"--snapshot-every is in seconds, found {command.snapshot_every}.")
    folder = command.snapshot_dir
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    tables = {name: _open(name, about, folder) for name, about in options.items()}
    with serve(
        tables, tcp=tcp, udp=udp, unix=command.unix, snapshots=folder, max_bytes=command.max_bytes,
        max_clients=command.max_clients,
    ) as server:  # fmt: skip
        kept = ", ".join(f"{name} ({_columns(table)})" for name, table in tables.items())
        print(f"serving {kept} at {', '.join(server.addresses)}", flush=True)
        try:
            _until_ended(server, lambda: _save(tables, folder), command.snapshot_every)
        finally:  # also if the server failed: the rows are still here
            _save(tables, folder)
    if folder is not None:
        print(f"saved in {folder}")


def _columns(table: Table) -> str:
    """The columns of a row in words: whoever wrote the schema sees how it was read."""
    return ", ".join(column.words for column in table.schema.columns)


def _where(option: str, host: str, port: int) -> str | None:
    if not -1 <= port < 2**16:
        raise ValueError(f"{option} is from 0 to 65535, or -1 for none, found {port}.")
    return None if port < 0 else f"{host}:{port}"


def _read(path: Path) -> dict[str, TableOptions]:
    try:
        sections = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no TOML file: {error}.") from None
    known = [option.name for option in fields(TableOptions)]
    for name, options in sections.items():
        if not isinstance(options, dict):
            raise ValueError(f"{path}: `{name}` is no section: write [{name}] above its options.")
        for option in options:
            if option not in known:
                raise ValueError(f"{path}, [{name}]: {unknown('option', option, known)}")
    if not sections:
        raise ValueError(f"{path} has no table: write [replay], and its options below.")
    return {name: _options(path, name, options) for name, options in sections.items()}


_KINDS: dict[str, Any] = {"schema": str | list, "sampler": str, "remover": str} | dict.fromkeys(
    ("samples_per_insert", "tolerance"), int | float
)
"""The types of options; the others are whole numbers."""


def _options(path: Path, name: str, options: dict[str, Any]) -> TableOptions:
    for option, value in options.items():
        if not isinstance(value, _KINDS.get(option, int)) or isinstance(value, bool):
            raise ValueError(f"{path}, [{name}]: `{option}` cannot be {value!r}.")
    columns = options.get("schema", "")
    words = columns.split() if isinstance(columns, str) else map(str, columns)
    given: dict[str, Any] = {**options, "schema": tuple(words)}
    return TableOptions(**given)


def _open(name: str, about: TableOptions, folder: Path | None) -> Table:
    """A new table, or that of the last snapshot."""
    if not about.schema:
        raise ValueError(
            f"which columns does table `{name}` have? Say --schema obs:float32:4 action:int32 ... "
            f"(name:dtype:shape, or name:dtype where it is one number)."
        )
    options = {f.name: getattr(about, f.name) for f in fields(about)}
    table = Table(" ".join(options.pop("schema")), options.pop("capacity"), **options)
    if folder is None:
        return table
    file, missing = snapshot_file(folder, name), _missing(folder, name)
    if not file.exists():
        if missing:
            print(f"{name}: {missing:,} inserted rows are missing: there is no snapshot of them")
        return table
    restored = Table.restore(file)
    _check_same(restored, table, file)
    rest = f"{missing:,} rows that were inserted after it are missing" if missing else ""
    print(f"{name}: {len(restored):,} rows restored from {file}; {rest or 'nothing is missing'}")
    return restored


def _check_same(restored: Table, table: Table, file: Path) -> None:
    """Refuse a snapshot of another table than the one that was asked for."""
    kept = {"schema": str(restored.schema)} | restored.options()
    asked = {"schema": str(table.schema)} | table.options()
    for name, value in kept.items():
        if value != asked[name]:
            raise ValueError(
                f"{file} holds a table with {name} {value}, and {asked[name]} was asked for: ask "
                f"for the same, or move the file away."
            )


def _missing(folder: Path, name: str) -> int:
    """Rows that were inserted after the last snapshot began."""
    tally = tally_file(folder, name)
    if not tally.exists() or tally.stat().st_size != 16:
        return 0
    inserted, saved = struct.unpack("<2Q", tally.read_bytes())
    return inserted - saved


def _save(tables: Mapping[str, Table], folder: Path | None) -> None:
    if folder is not None:
        for name, table in tables.items():
            table.save(snapshot_file(folder, name))


def _until_ended(server: Server, save: Callable[[], None], every: float) -> None:
    ended = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: ended.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        next_save = time.monotonic() + every
        while not ended.wait(min(1.0, max(0.0, next_save - time.monotonic())) if every else 1.0):
            server.check()
            if every and time.monotonic() >= next_save:
                try:
                    save()
                except OSError as error:  # a full disk, say: the last snapshot is still there
                    print(f"hocket: not saved: {error}", file=sys.stderr, flush=True)
                next_save = time.monotonic() + every
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True)
class Info:
    """Show the tables of a replay server, and how fast they are used."""

    address: tyro.conf.Positional[str]
    """shm://PATH, unix://PATH, tcp://HOST:PORT, udp://HOST:PORT or dpdk://PATH."""
    seconds: float = 1.0
    """How long to look; 0 shows no rates."""
    format: Literal["table", "json"] = "table"
    """For people, or one JSON object for each table."""


def _info(arguments: list[str]) -> None:
    command = tyro.cli(Info, args=arguments, prog="hocket replay info")
    if not 0 <= command.seconds <= 3600:
        raise ValueError(f"--seconds is from 0 to 3600, found {command.seconds}.")
    clients = [connect(command.address, table=name) for name in tables_at(command.address)]
    before = [client.info() for client in clients]
    time.sleep(command.seconds)
    for client, then in zip(clients, before, strict=True):
        now = client.info()
        rates = {
            f"{name}_per_second": (now[name] - then[name]) / command.seconds
            for name in ("inserts", "samples", "updates")
            if command.seconds
        }
        _print(client, now | rates, command.format)


def _print(client: Client, info: dict[str, Any], form: str) -> None:
    if form == "json":
        import json
        import math

        finite = {k: x if math.isfinite(x) else None for k, x in info.items()}
        print(json.dumps({"table": client.name, "schema": str(client.schema)} | finite))
        return
    from rich.console import Console
    from rich.table import Table as Grid

    grid = Grid(show_header=False, title=f"{client.name}: {client.schema}", title_justify="left")
    for line in _lines(info):
        grid.add_row(*line)
    Console().print(grid)


def _lines(info: dict[str, Any]) -> list[tuple[str, str]]:
    def counted(name: str) -> str:
        rate = info.get(f"{name}_per_second")
        return f"{info[name]:,}" + ("" if rate is None else f" ({rate:,.0f} a second)")

    pace = "any"
    if info["samples_per_insert"]:
        ahead = info["inserts"] * info["samples_per_insert"] - info["samples"]
        pace = (
            f"{info['samples_per_insert']:g} samples per insert, at {ahead:,.0f} of "
            f"{info['least']:,.0f} to {info['most']:,.0f}"
        )
    return [
        ("rows", f"{info['size']:,} of {info['capacity']:,}"),
        ("inserted", counted("inserts")),
        ("sampled", counted("samples")),
        ("updated", f"{counted('updates')}, {info['stale_keys']:,} of rows that were gone"),
        ("removed", f"{info['removals']:,}"),
        ("priorities", f"{info['total']:g} in all, {info['highest']:g} the highest"),
        ("memory", f"{info['bytes'] / 2**20:,.1f} MiB when it is full"),
        ("sampling", f"from {info['min_size']:,} rows on"),
        ("pace", pace),
        ("clients", f"{info['clients']:,}, {info['waiting']:,} requests wait"),
        (
            "requests",
            f"{info['requests']:,}, {info['refused']:,} refused, {info['timeouts']:,} waited in "
            f"vain, {info['dropped']:,} dropped",
        ),
    ]
