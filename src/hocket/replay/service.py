"""The replay as a service: native tables instead of arrays of the program.

What it keeps can be had as the arrays that the device replay would have, and be made from them: so
a checkpoint does not tell which of the two wrote it.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Mapping, Sequence
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
from hocket.replay.store.server import Server, serve
from hocket.replay.store.table import Table
from hocket.system.text import bytes_text

# Legend: C capacity, S shards.

CARRIERS = ("near", "shm", "tcp")
"""How instances reach a replay: by a call in one process, over shared memory, over TCP."""


@dataclass(frozen=True)
class ReplayService:
    """A replay of rows of a schema, as a program knows it."""

    name: str
    schema: Schema
    capacity: int
    tree: Any = field(repr=False)
    """How the columns make up a row."""

    @classmethod
    def of(cls, row: Any, capacity: int, name: str) -> ReplayService:
        """For rows like `row`, a tree of arrays or of their shapes and dtypes."""
        return cls(name, _schema(row), capacity, jax.tree.structure(row))

    def specs(self) -> Replay:
        return jax.eval_shape(lambda: device.init(self.row(), self.capacity))

    def row(self) -> Any:
        """The shapes and dtypes of one row."""
        columns = [jax.ShapeDtypeStruct(c.shape, c.dtype) for c in self.schema.columns]
        return jax.tree.unflatten(self.tree, columns)

    def check(self, how: Serving, given: Sequence[Shapes] = ()) -> None:
        if how.carrier not in CARRIERS:
            raise PlanError(unknown("carrier", how.carrier, CARRIERS))
        if self.capacity % how.shards:
            raise PlanError(
                f"the {self.name} has {self.capacity} rows, which {how.shards} shards cannot share "
                f"equally: use a power of two."
            )
        each = self.capacity // how.shards
        for _, real, *_ in given:
            if math.prod(real) > each:
                raise PlanError(
                    f"the {self.name} has {self.capacity} rows, {each} in each of {how.shards} "
                    f"shards, and {math.prod(real)} are inserted at once: use fewer shards, a "
                    f"larger `capacity`, fewer environments or shorter rollouts."
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
        self._laps = 0
        self._serving = ExitStack()
        self._addresses: Sequence[str] = ()
        self.tables: list[Table] = []
        self.changes = 0
        """How often something was changed, since it was loaded."""

    def load(self, content: Replay | None) -> None:
        self.close()
        how, schema = self._how, self._of.schema
        each = self._of.capacity // how.shards
        self.tables = [Table(schema, each, seed=shard) for shard in range(how.shards)]
        self._laps = self.changes = 0
        if content is not None:
            (self._fill if how.shards == 1 else self._deal)(jax.device_get(content))
        if how.carrier != "near":
            self.addresses()  # before several threads ask for them

    def content(self) -> Replay:
        return self._as_they_lie() if len(self.tables) == 1 else self._by_age()

    def addresses(self) -> Sequence[str]:
        if not self._addresses:
            servers = self._serve_tcp() if self._how.carrier == "tcp" else self._serve_near()
            self._addresses = [self._serving.enter_context(each).address for each in servers]
        return self._addresses

    def _serve_tcp(self) -> list[Server]:
        return [serve(table, tcp="127.0.0.1:0") for table in self.tables]

    def _serve_near(self) -> list[Server]:
        """To processes of this machine, over memory that they share."""
        folder = Path(self._serving.enter_context(tempfile.TemporaryDirectory(prefix="hocket-")))
        return [serve(x, unix=folder / f"shard-{k}") for k, x in enumerate(self.tables)]

    def close(self) -> None:
        self._serving.close()
        self._addresses = ()
        for table in self.tables:
            table.close()

    def _as_they_lie(self) -> Replay:
        """As the device replay would have it, slot by slot."""
        (table,) = self.tables
        contents, capacity = table.contents(), self._of.capacity
        slots = contents.keys[:, 0]
        inserts = table.info()["inserts"]
        return self._replay(
            contents.rows, contents.priority, slots,
            head=inserts % capacity, lap=self._laps + 1 + inserts // capacity,
            highest=table.info()["highest"],
        )  # fmt: skip

    def _by_age(self) -> Replay:
        """The rows of all shards in one ring, the oldest first: of each shard one after another."""
        contents = [table.contents() for table in self.tables]
        # By how many rows of its shard came later: shards are filled at about one pace.
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
        def placed(x: np.ndarray) -> np.ndarray:
            whole = np.zeros((self._of.capacity, *x.shape[1:]), x.dtype)
            whole[slots] = x
            return whole

        columns = [jnp.asarray(placed(rows[c.name])) for c in self._of.schema.columns]
        return Replay(
            rows=jax.tree.unflatten(self._of.tree, columns),
            tree=jnp.asarray(_sums(placed(priority))),
            head=jnp.asarray(head, jnp.int32),
            lap=jnp.asarray(lap, jnp.uint32),
            highest=jnp.asarray(highest, jnp.float32),
        )

    def _fill(self, content: Replay) -> None:
        """Insert the rows so that each has its slot again, and the next one too."""
        (table,), head = self.tables, int(content.head)
        columns, capacity = self._columns(content), self._of.capacity
        priority = np.asarray(content.tree)[capacity:]
        rounds = [slice(0, capacity), slice(0, head)] if content.lap > 1 else [slice(0, head)]
        for part in rounds:
            _insert(table, columns, priority, part, float(content.highest))
        self._laps = max(0, int(content.lap) - 2)

    def _deal(self, content: Replay) -> None:
        """The rows to all shards in turns, the oldest first."""
        capacity, head = self._of.capacity, int(content.head)
        columns, priority = self._columns(content), np.asarray(content.tree)[capacity:]
        slots = np.arange(head)
        if content.lap > 1:
            slots = np.concatenate([np.arange(head, capacity), slots])
        for k, table in enumerate(self.tables):
            mine = slots[k :: len(self.tables)]
            _insert(table, columns, priority, mine, float(content.highest))

    def _columns(self, content: Replay) -> dict[str, np.ndarray]:
        return dict(
            zip([c.name for c in self._of.schema.columns], jax.tree.leaves(content.rows),
                strict=True)
        )  # fmt: skip


def _insert(
    table: Table, columns: Mapping[str, np.ndarray], priority: np.ndarray, part: Any, highest: float
) -> None:
    """A part of some rows, into a table that then knows the highest priority there ever was."""
    mine = priority[part]
    if len(mine):
        keys = table.insert({name: x[part] for name, x in columns.items()}, mine)
        if table.info()["highest"] < highest:  # of a row that had it once
            table.update(keys[:1], [highest])
            table.update(keys[:1], mine[:1])


def stores(at: At) -> Sequence[Access]:
    """The shards of a replay, as an instance reaches them."""
    if not isinstance(at.service, LiveReplay):
        assert isinstance(at.service, Sequence)  # it is in another process
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
                f"`{name}` of a row is {x.dtype}, and a service keeps numbers: store "
                f"`jax.random.key_data` of it."
            )
        columns.append(Column(name, np.dtype(x.dtype), tuple(x.shape)))
    return Schema(tuple(columns))


def _sums(leaves: np.ndarray) -> np.ndarray:
    """The sum tree above these priorities, each node the sum of its two."""
    levels = [leaves]
    while len(levels[-1]) > 1:
        levels.append(levels[-1][0::2] + levels[-1][1::2])
    return np.concatenate([np.zeros(1, np.float32), *levels[::-1]])
