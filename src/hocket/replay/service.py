"""The replay as a service, which keeps the rows in native tables, not in the programs.

`LiveReplay.content` converts the tables to the arrays of a device replay, and `load` converts them
back. So a service can load the checkpoint of a device replay, and the other way round.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hocket.core.program.contract import leaf_names
from hocket.core.program.service import At, Serving, Shapes
from hocket.errors import PlanError, unknown
from hocket.replay import device
from hocket.replay.device import Replay
from hocket.replay.store.access import Access
from hocket.replay.store.client import connect
from hocket.replay.store.schema import Column, Schema
from hocket.replay.store.server import serve
from hocket.replay.store.table import Table
from hocket.system.text import bytes_text

# Legend: C capacity, S shards.

CARRIERS = ("near", "shm", "tcp")
"""How instances reach a replay: by calls in its own process, through shared memory, or over TCP."""


@dataclass(frozen=True)
class ReplayService:
    """The name, columns and capacity of a replay. Programs hold these; a service holds the rows."""

    name: str
    schema: Schema
    capacity: int
    tree: Any = field(repr=False)
    """The pytree structure of a row, whose leaves are the columns."""

    @classmethod
    def of(cls, row: Any, capacity: int, name: str) -> ReplayService:
        """Declare a replay of rows like `row`, a tree of arrays or of their shapes and dtypes."""
        return cls(name, _schema(row), capacity, jax.tree.structure(row))

    def specs(self) -> Replay:
        return jax.eval_shape(lambda: device.init(self.row(), self.capacity))

    def row(self) -> Any:
        """Return the shapes and dtypes of one row."""
        columns = [jax.ShapeDtypeStruct(c.shape, c.dtype) for c in self.schema.columns]
        return jax.tree.unflatten(self.tree, columns)

    def check(self, how: Serving, given: Sequence[Shapes] = ()) -> None:
        if how.carrier not in CARRIERS:
            raise PlanError(unknown("carrier", how.carrier, CARRIERS))
        if self.capacity % how.shards:
            raise PlanError(
                f"the {self.name} has {self.capacity} rows, which {how.shards} shards cannot share "
                f"equally: make `shards` a power of two, at most {self.capacity}."
            )
        each = self.capacity // how.shards
        for _, real, *_ in given:
            if math.prod(real) > each:
                raise PlanError(
                    f"the {self.name} has {self.capacity} rows, {each} in each of {how.shards} "
                    f"shards, but one shard is given {math.prod(real)} rows at once: use fewer "
                    f"shards, a larger `capacity`, fewer environments or shorter rollouts."
                )

    def about(self, how: Serving) -> str:
        each = sum(column.bytes for column in self.schema.columns)
        shards = f" in {how.shards} shards" if how.shards > 1 else ""
        ahead = f", {how.prefetch} batches drawn ahead" if how.prefetch else ""
        way = "" if how.carrier == "near" else f" over {how.carrier}"
        return (
            f"{self.name} is kept by a service{way}: {self.capacity:,} rows of {bytes_text(each)}"
            f"{shards}, {bytes_text(self.capacity * each)}{ahead}"
        )

    def start(self, how: Serving) -> LiveReplay:
        return LiveReplay(self, how)


class LiveReplay:
    """The tables of a replay, in the process of the run."""

    def __init__(self, of: ReplayService, how: Serving) -> None:
        self._of, self._how = of, how
        # The number of laps (passes over all slots) of the loaded ring that `_fill` did not repeat
        # in the table. `_by_slot` adds it to the table's own laps.
        self._laps = 0
        self._serving = ExitStack()
        self._addresses: Sequence[str] = ()
        self.tables: list[Table] = []
        self.changes = 0
        """The number of calls that have changed the content since it was loaded."""

    def load(self, content: Replay | None) -> None:
        self.close()
        how, schema = self._how, self._of.schema
        each = self._of.capacity // how.shards
        self.tables = [Table(schema, each, seed=shard) for shard in range(how.shards)]
        self._laps = self.changes = 0
        if content is not None:
            self._fill(jax.device_get(content))
        if how.carrier != "near":
            self.addresses()  # starts the servers once, before several threads ask for them

    def content(self) -> Replay:
        return self._by_slot() if len(self.tables) == 1 else self._by_age()

    def addresses(self) -> Sequence[str]:
        if not self._addresses:
            if self._how.carrier == "tcp":
                servers = [serve(table, tcp="127.0.0.1:0") for table in self.tables]
            else:  # Unix sockets, for processes of this machine, which share memory with this one
                folder = self._serving.enter_context(tempfile.TemporaryDirectory(prefix="hocket-"))
                paths = [Path(folder, f"shard-{k}") for k in range(len(self.tables))]
                servers = [serve(x, unix=p) for x, p in zip(self.tables, paths, strict=True)]
            self._addresses = [self._serving.enter_context(each).address for each in servers]
        return self._addresses

    def close(self) -> None:
        self._serving.close()
        self._addresses = ()
        for table in self.tables:
            table.close()

    def _by_slot(self) -> Replay:
        """Convert the only table to a device replay in which each row keeps its slot."""
        (table,) = self.tables
        contents, info = table.contents(), table.info()
        laps, head = divmod(info["inserts"], self._of.capacity)
        return self._replay(
            contents.rows, contents.priority, contents.keys[:, 0],
            head=head, lap=self._laps + 1 + laps, highest=info["highest"],
        )  # fmt: skip

    def _by_age(self) -> Replay:
        """Convert all shards to one device replay, with the oldest row first."""
        contents = [table.contents() for table in self.tables]
        # The age of a row is how many rows of its shard came later. Shards share no clock, but they
        # are filled at about the same pace.
        ages = np.concatenate([np.arange(len(x.keys))[::-1] for x in contents])
        order = np.argsort(-ages, kind="stable")
        rows = {
            c.name: np.concatenate([x.rows[c.name] for x in contents])[order]
            for c in self._of.schema.columns
        }
        priority = np.concatenate([x.priority for x in contents])[order]
        full, num = divmod(len(order), self._of.capacity)
        highest = max(table.info()["highest"] for table in self.tables)
        return self._replay(
            rows, priority, np.arange(len(order)), head=num, lap=1 + full, highest=highest
        )

    def _replay(
        self, rows: Mapping[str, np.ndarray], priority: np.ndarray, slots: np.ndarray, *,
        head: int, lap: int, highest: float,
    ) -> Replay:  # fmt: skip
        def in_slots(x: np.ndarray) -> np.ndarray:
            ring = np.zeros((self._of.capacity, *x.shape[1:]), x.dtype)
            ring[slots] = x
            return ring

        columns = [jnp.asarray(in_slots(rows[c.name])) for c in self._of.schema.columns]
        return Replay(
            rows=jax.tree.unflatten(self._of.tree, columns),
            tree=jnp.asarray(_sums(in_slots(priority))),
            head=jnp.asarray(head, jnp.int32),
            lap=jnp.asarray(lap, jnp.uint32),
            highest=jnp.asarray(highest, jnp.float32),
        )

    def _fill(self, content: Replay) -> None:
        """Insert the rows of a loaded replay into the tables."""
        names = [column.name for column in self._of.schema.columns]
        columns = dict(zip(names, jax.tree.leaves(content.rows), strict=True))
        priority = np.asarray(content.tree)[self._of.capacity :]
        for table, part in self._parts(int(content.head), is_full=int(content.lap) > 1):
            _insert(table, columns, priority, part, float(content.highest))
        self._laps = max(0, int(content.lap) - 2)

    def _parts(self, head: int, is_full: bool) -> Iterator[tuple[Table, Any]]:
        """Yield (table, slots): the rows in these slots of the loaded replay belong in that table.

        Insert them in the order of the pairs. A table may occur twice.
        """
        capacity, num = self._of.capacity, len(self.tables)
        if num == 1:
            # A full ring is inserted whole, then the part before its head again. So each row keeps
            # its slot, and the table continues at the head.
            rounds = [slice(0, capacity), slice(0, head)] if is_full else [slice(0, head)]
            yield from ((self.tables[0], part) for part in rounds)
        else:
            oldest = np.arange(head, capacity if is_full else head)
            slots = np.concatenate([oldest, np.arange(head)])
            yield from ((table, slots[k::num]) for k, table in enumerate(self.tables))


def _insert(
    table: Table, columns: Mapping[str, np.ndarray], priority: np.ndarray, part: Any, highest: float
) -> None:
    """Insert the rows in slots `part`. Increase the table's highest priority to `highest`."""
    mine = priority[part]
    if len(mine):
        keys = table.insert({name: x[part] for name, x in columns.items()}, mine)
        # Only a row can raise a table's highest priority, so the first row has it for a moment.
        if table.info()["highest"] < highest:
            table.update(keys[:1], [highest])
            table.update(keys[:1], mine[:1])


def stores(at: At) -> Sequence[Access]:
    """Return all shards of a replay, as tables in this process or as connections to servers."""
    if not isinstance(at.service, LiveReplay):
        assert isinstance(at.service, Sequence)  # the addresses of tables in another process
        addresses = at.service
    elif at.how.carrier == "near":
        return at.service.tables
    else:
        addresses = at.service.addresses()
    return [connect(address) for address in addresses]


def _schema(row: Any) -> Schema:
    names = [re.sub(r"[\s:]", "_", name) or "row" for name in leaf_names(row)]
    columns = []
    for name, x in zip(names, jax.tree.leaves(row), strict=True):
        if jnp.issubdtype(x.dtype, jax.dtypes.extended):
            raise ValueError(
                f"`{name}` of a row is {x.dtype}, but a service keeps only numbers: store "
                f"its `jax.random.key_data` instead."
            )
        columns.append(Column(name, np.dtype(x.dtype), tuple(x.shape)))
    return Schema(tuple(columns))


def _sums(leaves: np.ndarray) -> np.ndarray:
    """Return the sum tree over these priorities, laid out as in `Replay.tree`."""
    levels = [leaves]
    while len(levels[-1]) > 1:
        levels.append(levels[-1][0::2] + levels[-1][1::2])
    return np.concatenate([np.zeros(1, np.float32), *levels[::-1]])
