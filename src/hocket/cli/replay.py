"""`hocket replay`: start a replay server, or show what one holds."""

from __future__ import annotations

import math
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
    "serve": "start a server, which runs until Ctrl-C",
    "info": "show the tables of a server, and how fast they are used",
}

HELP = """usage: hocket replay ACTION ...

Replay as a service: actors insert and learners sample, over shared memory or a network.

{actions}

    hocket replay serve --schema obs:float32:4 action:int32 --capacity 1000000
    hocket replay info tcp://127.0.0.1:7777

In a program: hocket.replay.connect("tcp://127.0.0.1:7777").
"""


def replay_command(arguments: list[str]) -> None:
    """Start a replay server, or show what one holds."""
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
    """The options of the table."""

    schema: tuple[str, ...] = ()
    """The columns of a row, each name:dtype:shape, or name:dtype for a single number. An example:
    obs:float32:4 image:uint8:84x84x3 action:int32. A dtype is one of NumPy's, or bfloat16. A stack
    of 4 frames is image:uint8:84x84*4; a frame that several rows share is stored once."""
    capacity: int = 1_000_000
    """The largest number of rows in the table."""
    sampler: Select = "prioritized"
    """The rule that picks the rows of a sample."""
    remover: Select = "oldest"
    """The rule that picks the row to remove when the table is full."""
    max_times_sampled: int = 0
    """The number of draws after which a row is removed; 0 for no limit."""
    min_size: int = 1
    """Rows that the table must hold before any are drawn."""
    samples_per_insert: float | None = None
    """The number of rows to sample for each row inserted. Inserts or samples that get too far ahead
    wait (see `tolerance`). By default nobody waits."""
    tolerance: float | None = None
    """The number of samples by which inserting or sampling may get ahead of the other before it
    waits. Required with `samples_per_insert`."""
    num_frames: int | None = None
    """The largest number of frames stored; by default twice the capacity."""
    seed: int = 0
    """The seed of the draws."""


@dataclass(frozen=True)
class Serve:
    """Start a replay server, with one table or with the tables of a file. Ctrl-C ends it."""

    table: tyro.conf.OmitArgPrefixes[TableOptions]
    name: str = "replay"
    """The name of the table."""
    tables: Path | None = None
    """A TOML file with a section for each table, which replaces the options of a single table. The
    section [replay] may say schema = "obs:float32:4 action:int32" and capacity = 1000."""
    host: str = "127.0.0.1"
    """The address to listen on; 0.0.0.0 for all addresses of the machine. There is no password:
    anybody who can connect may read and write."""
    port: int = 7777
    """The TCP port; 0 for any free port, -1 for no TCP."""
    udp_port: int = -1
    """The UDP port (udp://HOST:PORT); 0 for any free port, -1 for no UDP."""
    unix: Path | None = None
    """The path of a Unix socket for clients on this machine. They connect to unix://PATH, or to
    shm://PATH to share memory with the server."""
    snapshot_dir: Path | None = None
    """The folder to save tables in, and to restore them from when the server starts."""
    snapshot_every: float = 600.0
    """Seconds between regular snapshots; 0 for none. Other snapshots are made at the end, and
    whenever a client asks for one."""
    max_bytes: int = 2**30
    """The largest size of one request or reply, in bytes."""
    max_clients: int = 1000
    """The largest number of connections at a time. UDP clients are counted separately, up to the
    same number."""


def _serve(arguments: list[str]) -> None:
    command = tyro.cli(Serve, args=arguments, prog="hocket replay serve")
    options = {command.name: command.table}
    if command.tables is not None:
        if command.table.schema:
            raise ValueError(
                "--tables names a file with the schemas of all tables: leave --schema out."
            )
        options = _read(command.tables)
    tcp = _where("--port", command.host, command.port)
    udp = _where("--udp-port", command.host, command.udp_port)
    if not command.snapshot_every >= 0:
        raise ValueError(
            f"--snapshot-every must be at least 0 seconds, found {command.snapshot_every}."
        )
    folder = command.snapshot_dir
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    tables = {name: _open(name, about, folder) for name, about in options.items()}
    with serve(
        tables, tcp=tcp, udp=udp, unix=command.unix, snapshots=folder, max_bytes=command.max_bytes,
        max_clients=command.max_clients,
    ) as server:  # fmt: skip
        # The columns are printed so that the user can see how the schema was read.
        names = ", ".join(f"{name} ({_columns(table)})" for name, table in tables.items())
        print(f"serving {names} at {', '.join(server.addresses)}", flush=True)
        try:
            _until_ended(server, lambda: _save(tables, folder), command.snapshot_every)
        finally:  # save even if the server failed, since this process still holds the rows
            _save(tables, folder)
    if folder is not None:
        print(f"saved in {folder}")


def _columns(table: Table) -> str:
    return ", ".join(column.words for column in table.schema.columns)


def _where(option: str, host: str, port: int) -> str | None:
    if not -1 <= port < 2**16:
        raise ValueError(f"{option} must be from 0 to 65535, or -1 for none, found {port}.")
    return None if port < 0 else f"{host}:{port}"


def _read(path: Path) -> dict[str, TableOptions]:
    """Read the options of each table from a TOML file."""
    try:
        sections = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a TOML file: {error}.") from None
    if not sections:
        raise ValueError(f"{path} has no table: write [replay], and below it the options.")
    return {name: _options(path, name, options) for name, options in sections.items()}


_KINDS: dict[str, Any] = {"schema": str | list, "sampler": str, "remover": str} | dict.fromkeys(
    ("samples_per_insert", "tolerance"), int | float
)
"""The types of table options in a TOML file. An option that is not listed is a whole number."""


def _options(path: Path, name: str, options: object) -> TableOptions:
    if not isinstance(options, dict):
        raise ValueError(f"{path}: `{name}` is not a section: write [{name}] above its options.")
    known = [option.name for option in fields(TableOptions)]
    for option, value in options.items():
        if option not in known:
            raise ValueError(f"{path}, [{name}]: {unknown('option', option, known)}")
        if not isinstance(value, _KINDS.get(option, int)) or isinstance(value, bool):
            raise ValueError(
                f"{path}, [{name}]: `{option}` cannot be {value!r}: see its type in `hocket replay "
                f"serve --help`."
            )
    columns = options.get("schema", "")
    words = columns.split() if isinstance(columns, str) else map(str, columns)
    given: dict[str, Any] = {**options, "schema": tuple(words)}
    return TableOptions(**given)


def _open(name: str, about: TableOptions, folder: Path | None) -> Table:
    """Restore a table from its last snapshot, or make a new one if there is none."""
    if not about.schema:
        raise ValueError(
            f"which columns does table `{name}` have? Give --schema obs:float32:4 action:int32 ... "
            f"(name:dtype:shape, or name:dtype for a single number)."
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
    rest = f"{missing:,} rows inserted after it are missing" if missing else "nothing is missing"
    print(f"{name}: {len(restored):,} rows restored from {file}; {rest}")
    return restored


def _check_same(restored: Table, table: Table, file: Path) -> None:
    """Raise if the table in a snapshot differs from `table` in its columns or options."""
    asked = {"schema": str(table.schema)} | table.options()
    for name, value in ({"schema": str(restored.schema)} | restored.options()).items():
        if value != asked[name]:
            raise ValueError(
                f"{file} holds a table with {name} {value}, but you asked for {asked[name]}: ask "
                f"for {value}, or move the file away to start with an empty table."
            )


def _missing(folder: Path, name: str) -> int:
    """Return how many rows were inserted after the last snapshot began."""
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
    """Wait for Ctrl-C or SIGTERM. Call `save` every `every` seconds, or never if that is 0."""
    ended, every = threading.Event(), every or math.inf
    before = {
        number: signal.signal(number, lambda *_: ended.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        next_save = time.monotonic() + every
        while not ended.wait(min(1.0, max(0.0, next_save - time.monotonic()))):
            server.check()
            if time.monotonic() >= next_save:
                try:
                    save()
                except OSError as error:  # such as a full disk; the last snapshot is intact
                    print(f"hocket: not saved: {error}", file=sys.stderr, flush=True)
                next_save = time.monotonic() + every
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True)
class Info:
    """Show the tables of a replay server, and how fast they are used."""

    address: tyro.conf.Positional[str]
    """The address of the server: shm://PATH, unix://PATH, tcp://HOST:PORT, udp://HOST:PORT or
    dpdk://PATH."""
    seconds: float = 1.0
    """Seconds over which to measure the rates; 0 to show no rates."""
    format: Literal["table", "json"] = "table"
    """The output for each table of the server: a table for people, or a line of JSON."""


def _info(arguments: list[str]) -> None:
    command = tyro.cli(Info, args=arguments, prog="hocket replay info")
    if not 0 <= command.seconds <= 3600:
        raise ValueError(f"--seconds must be from 0 to 3600, found {command.seconds}.")
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
        # `ahead` is how many samples the inserts have earned but nobody has drawn yet: at `least`
        # samplers wait, at `most` inserters wait.
        ahead = info["inserts"] * info["samples_per_insert"] - info["samples"]
        pace = (
            f"{info['samples_per_insert']:g} samples per insert, at {ahead:,.0f} of "
            f"{info['least']:,.0f} to {info['most']:,.0f}"
        )
    return [
        ("rows", f"{info['size']:,} of {info['capacity']:,}"),
        ("inserted", counted("inserts")),
        ("sampled", counted("samples")),
        ("updated", f"{counted('updates')}, {info['stale_keys']:,} of rows already removed"),
        ("removed", f"{info['removals']:,}"),
        ("priorities", f"{info['total']:g} in all, {info['highest']:g} the highest"),
        ("memory", f"{info['bytes'] / 2**20:,.1f} MiB when full"),
        ("sampling", f"from {info['min_size']:,} rows on"),
        ("pace", pace),
        ("clients", f"{info['clients']:,}, {info['waiting']:,} requests waiting"),
        (
            "requests",
            f"{info['requests']:,}, {info['refused']:,} refused, {info['timeouts']:,} timed out, "
            f"{info['dropped']:,} dropped",
        ),
    ]
