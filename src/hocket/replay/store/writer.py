"""A writer for actors: it collects rows, inserts them in batches, and handles rate limits.

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

from hocket.errors import unknown
from hocket.replay.store.access import Access, Closing

WhenAhead = Literal["wait", "drop_new", "drop_oldest"]
"""How to treat a batch that the rate limits of the table do not allow yet; see `Writer`."""


class Writer(Closing):
    """Collects rows, and inserts `num` at a time. Only one thread may use it.

    `when_ahead` says what to do while the table's rate limits do not allow an insert: `wait` waits
    up to `timeout` seconds, `drop_new` drops the new rows, and `drop_oldest` keeps up to `pending`
    batches for later and drops the oldest beyond that. `dropped` counts the dropped rows.
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
            raise ValueError(f"a writer must insert at least one row at a time, found num={num}.")
        if when_ahead not in get_args(WhenAhead):
            raise ValueError(unknown("when_ahead", when_ahead, get_args(WhenAhead)))
        if pending < 1:
            raise ValueError(f"pending={pending} must be at least 1.")
        self._table, self._num = table, num
        self._when_ahead: WhenAhead = when_ahead
        self._timeout = timeout if when_ahead == "wait" else 0.0
        # Full batches that wait for an insert, oldest first. `_rows` is the batch being filled.
        self._batches: deque[_PendingRows] = deque()
        self._most = {"wait": 1, "drop_new": 0, "drop_oldest": pending}[when_ahead]
        self._rows = _PendingRows(table, num)
        self.inserted = 0
        """The number of rows that the table has taken."""
        self.dropped = 0
        """The number of rows that were dropped."""

    def append(self, row: Mapping[str, Any], priority: float | None = None) -> None:
        """Add one row. Either all rows of a batch have priorities, or none has."""
        self._rows.add(row, priority)
        if self._rows.count == self._num:
            self.flush()

    def flush(self) -> None:
        """Insert all rows. If the rate limits do not allow it now, do what `when_ahead` says."""
        if self._rows.count:
            self._batches.append(self._rows)
            self._rows = _PendingRows(self._table, self._num)
        while self._batches and self._insert(self._batches[0]):
            self._batches.popleft()
        while len(self._batches) > self._most:
            self._drop()

    def close(self) -> None:
        """Insert the collected rows. Rows that the table does not take are dropped and counted."""
        try:
            self.flush()
        finally:
            while self._batches:
                self._drop()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self._when_ahead == "wait":
            self._timeout = 0.0  # after an error, do not wait for other processes
            with suppress(TimeoutError):
                self.close()
        else:
            self.close()

    def _drop(self) -> None:
        self.dropped += self._batches.popleft().count

    def _insert(self, rows: _PendingRows) -> bool:
        try:
            self._table.insert(*rows.batch(), timeout=self._timeout)
        except TimeoutError:
            if self._when_ahead == "wait":
                raise
            return False
        except ValueError:  # these rows will never fit, but later batches may
            self._drop()
            raise
        self.inserted += rows.count
        return True


class _PendingRows:
    """A batch of up to `num` rows, filled one by one."""

    def __init__(self, table: Access, num: int) -> None:
        self._arrays = {
            column.name: np.empty((num, *column.given[1]), column.given[0])
            for column in table.schema.columns
        }
        self._priorities: list[float] = []
        self.count = 0

    def add(self, row: Mapping[str, Any], priority: float | None) -> None:
        if row.keys() != self._arrays.keys():
            raise ValueError(
                f"a row must have the columns {', '.join(self._arrays)}, found {', '.join(row)}."
            )
        if (priority is not None) != (len(self._priorities) == self.count) and self.count:
            raise ValueError("either all rows of a batch have priorities, or none has.")
        values = {name: np.asarray(row[name]) for name in self._arrays}
        for name, array in self._arrays.items():
            x = values[name]
            if x.shape != array.shape[1:] or not _fits(x, array.dtype):
                raise ValueError(
                    f"`{name}` of a row must be {array.dtype} {list(array.shape[1:])}, found "
                    f"{x.dtype} {list(x.shape)}: {x}."
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
    """Return True if numbers keep their values in another dtype, apart from rounding of floats."""
    if x.dtype == dtype:
        return True
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return x.dtype.kind in "iu" and bool(np.all((x >= limits.min) & (x <= limits.max)))
    return x.dtype.kind in "biuf" and dtype.kind != "b"
