"""How an actor inserts: rows one by one, sent together, and what happens when it must wait.

with Writer(replay, 64, when_ahead="drop_oldest") as writer:
    writer.append({"obs": obs, "action": action}, priority)     # one row
print(writer.dropped)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal, get_args

import numpy as np

from hocket.replay.store.access import Access

WhenAhead = Literal["wait", "drop_new", "drop_oldest"]
"""How to go on where a table's limits say that there were enough inserts for now."""


class Writer:
    """Collects rows, and inserts `num` at a time. One thread may use it.

    Where the table's limits do not allow an insert, `wait` waits up to `timeout` seconds,
    `drop_new` drops the rows, and `drop_oldest` keeps up to `pending` batches to insert later, and
    drops the oldest ones. Rows that were dropped are counted: `dropped`.
    """

    def __init__(
        self,
        table: Access,
        num: int,
        *,
        when_ahead: WhenAhead = "wait",
        pending: int = 16,
        timeout: float | None = None,
    ) -> None:
        if num < 1:
            raise ValueError(f"a writer inserts at least one row at a time, found num={num}.")
        if when_ahead not in get_args(WhenAhead):
            ways = ", ".join(get_args(WhenAhead))
            raise ValueError(f"when_ahead={when_ahead!r}: choose one of {ways}.")
        if pending < 1:
            raise ValueError(f"pending={pending}: at least one batch is kept.")
        self._table, self._num, self._timeout = table, num, timeout
        self._when_ahead: WhenAhead = when_ahead
        # Those that are full, the oldest first, and the one that is not.
        self._batches: deque[_PendingRows] = deque()
        self._most = pending if when_ahead == "drop_oldest" else 1
        self._rows = self._new()
        self.inserted = 0
        """Rows that the table has taken."""
        self.dropped = 0
        """Rows that nobody will ever see."""

    def append(self, row: Mapping[str, Any], priority: float | None = None) -> None:
        """Add one row. In a batch all rows have priorities, or none has."""
        self._rows.add(row, priority)
        if self._rows.count == self._num:
            self.flush()

    def flush(self) -> None:
        """Insert what there is, or do what was chosen where that is not allowed now."""
        if self._rows.count:
            self._batches.append(self._rows)
            self._rows = self._new()
        while self._batches and self._insert(self._batches[0]):
            self._batches.popleft()
        while len(self._batches) > (0 if self._when_ahead == "drop_new" else self._most):
            self._drop()

    def close(self) -> None:
        """Insert what is left; what the table does not take is dropped, and counted."""
        try:
            self.flush()
        finally:
            while self._batches:
                self._drop()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self._when_ahead == "wait":
            self._timeout = 0.0  # whoever fails does not wait for others
            with suppress(TimeoutError):
                self.close()
        else:
            self.close()

    def _drop(self) -> None:
        self.dropped += self._batches.popleft().count

    def _new(self) -> _PendingRows:
        return _PendingRows(self._table, self._num)

    def _insert(self, rows: _PendingRows) -> bool:
        try:
            timeout = self._timeout if self._when_ahead == "wait" else 0.0
            self._table.insert(*rows.batch(), timeout=timeout)
        except TimeoutError:
            if self._when_ahead == "wait":
                raise
            return False
        except ValueError:  # wrong now and for ever: those that follow are not to blame
            self._drop()
            raise
        self.inserted += rows.count
        return True


class _PendingRows:
    """Up to so many rows."""

    def __init__(self, table: Access, num: int) -> None:
        self._table = table
        self._arrays = {
            column.name: np.empty((num, *column.given[1]), column.given[0])
            for column in table.schema.columns
        }
        self._priorities: list[float] = []
        self.count = 0

    def add(self, row: Mapping[str, Any], priority: float | None) -> None:
        if row.keys() != self._arrays.keys():
            raise ValueError(
                f"a row has the columns {', '.join(self._arrays)}, found {', '.join(row)}."
            )
        if (priority is not None) != (len(self._priorities) == self.count) and self.count:
            raise ValueError("in a batch all rows have priorities, or none has.")
        values = {name: np.asarray(row[name]) for name in self._arrays}
        for name, array in self._arrays.items():
            x = values[name]
            if x.shape != array.shape[1:] or not _fits(x, array.dtype):
                raise ValueError(
                    f"`{name}` of a row is {array.dtype} {list(array.shape[1:])}, found {x.dtype} "
                    f"{list(x.shape)}: {x}."
                )
        for name, array in self._arrays.items():
            array[self.count] = values[name]
        if priority is not None:
            self._priorities.append(priority)
        self.count += 1

    def batch(self) -> tuple[dict[str, Any], list[float] | None]:
        rows = {name: x[: self.count] for name, x in self._arrays.items()}
        return rows, self._priorities or None


def _fits(x: np.ndarray, dtype: np.dtype[Any]) -> bool:
    """Whether numbers are the same in that dtype, but for the precision of floating point."""
    if x.dtype == dtype:
        return True
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return x.dtype.kind in "iu" and bool(np.all((x >= limits.min) & (x <= limits.max)))
    return x.dtype.kind in "biuf" and dtype.kind != "b"
