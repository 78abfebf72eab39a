"""A replay table in this process: rows of a schema, drawn by priority or by age.

    table = Table("obs:float32:4 action:int32", capacity=100_000)
    keys = table.insert({"obs": obs, "action": action})  # [n, 4], [n]; at the highest priority
    batch = table.sample(256)
    table.update(batch.keys, priority)                   # skips rows that are gone

A table is native code, usable without the rest of hocket. Threads may share one. Raise priorities
to the power alpha before you pass them, so that alpha = 0 means uniform sampling.

Schaul et al. 2016, "Prioritized Experience Replay": https://arxiv.org/abs/1511.05952
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from hocket.errors import unknown
from hocket.replay.store.access import Access, Batch, plain
from hocket.replay.store.schema import Schema

if TYPE_CHECKING:
    from numpy.typing import NDArray

Select = Literal["prioritized", "uniform", "oldest", "newest", "highest", "lowest"]
"""How a row is chosen: at random by priority, at random, or by the most extreme age or priority.
Reverb calls these Prioritized, Uniform, Fifo, Lifo, MaxHeap and MinHeap."""


@dataclass(frozen=True)
class Contents:
    """All rows of a table, oldest first."""

    rows: dict[str, NDArray[Any]]
    keys: NDArray[np.uint32]
    """The key of each row, `[n, 2]`, as in `Batch.keys`."""
    priority: NDArray[np.float32]


class Table(Access):
    """A table of at most `capacity` rows.

    `sampler` says which rows are drawn, and `remover` which row an insert replaces when the table
    is full. A row that has been drawn `max_times_sampled` times is removed; 0 means no limit.

    Sampling begins with `min_size` rows. With `samples_per_insert`, the difference `rows inserted *
    samples_per_insert - rows sampled` stays within `tolerance` of its value when sampling begins,
    `min_size * samples_per_insert`. An insert or sample that would leave this range waits, and
    raises TimeoutError after its `timeout` in seconds; None waits for ever.
    """

    def __init__(
        self,
        schema: Schema | str,
        capacity: int,
        *,
        sampler: Select = "prioritized",
        remover: Select = "oldest",
        max_times_sampled: int = 0,
        min_size: int = 1,
        samples_per_insert: float | None = None,
        tolerance: float | None = None,
        num_frames: int | None = None,
        seed: int = 0,
    ) -> None:
        schema = Schema.parse(schema) if isinstance(schema, str) else schema
        columns = schema.columns
        capacity = _count("capacity", capacity)
        if num_frames is None:
            num_frames = 2 * capacity if any(column.frames for column in columns) else 0
        least, most = _limits(samples_per_insert, tolerance, min_size)
        native = store().Table(
            capacity=capacity,
            columns=[(column.bytes, column.frames) for column in columns],
            num_frames=_count("num_frames", num_frames),
            sampler=_select("sampler", sampler),
            remover=_select("remover", remover),
            max_times_sampled=_count("max_times_sampled", max_times_sampled),
            min_size=_count("min_size", min_size),
            samples_per_insert=samples_per_insert or 0.0,
            least=least,
            most=most,
            seed=operator.index(seed) % 2**64,
        )
        self._use(native, schema)

    @classmethod
    def restore(cls, path: str | Path) -> Table:
        """Read a table that `save` wrote. Rows and keys are the same, and random draws continue."""
        with open(path, "rb"):  # raises Python's own error if the file cannot be opened
            pass
        table, native = cls.__new__(cls), store()
        try:
            restored, schema = native.restore(os.fsdecode(path))
        except RuntimeError as error:
            raise ValueError(f"{error}.") from None
        table._use(restored, Schema.parse(schema))
        return table

    def contents(self) -> Contents:
        """Return every row, oldest first."""
        while True:  # again if another thread changed the size between `len` and `look`
            num = len(self)
            rows = {c.name: np.empty((num, *c.drawn), c.dtype) for c in self.schema.columns}
            keys, priority = np.empty((num, 2), np.uint32), np.empty(num, np.float32)
            if self._native.look(num, keys, priority, plain(tuple(rows.values()))):
                return Contents(rows, keys, priority)

    def save(self, path: str | Path) -> None:
        """Write the table, as it is now, to a file. Other threads may use the table meanwhile.

        The file gets its name when it is complete. A row that is replaced before it was written
        stays in memory until then.
        """
        try:
            self._native.save(os.fsdecode(path), str(self.schema))
        except RuntimeError as error:
            raise OSError(f"{error}.") from None

    def options(self) -> dict[str, Any]:
        """Return the options of the table. `least` and `most` are the limits from `tolerance`."""
        options, names = self._native.made(), get_args(Select)
        return options | {which: names[options[which]] for which in ("sampler", "remover")}

    def clear(self) -> None:
        self._native.clear()

    def close(self) -> None:
        self._native.close()

    def info(self) -> dict[str, Any]:
        return self._native.counts()

    def __repr__(self) -> str:
        info = self.info()
        return f"Table({str(self.schema)!r}, {info['size']:,} of {info['capacity']:,} rows)"

    def _ask(
        self, num: int, uniforms: NDArray[np.float32] | None, out: Batch | None, seconds: float
    ) -> Callable[[], Batch]:
        return partial(self._draw, num, uniforms, out, seconds)

    def _draw(
        self, num: int, uniforms: NDArray[np.float32] | None, out: Batch | None, seconds: float
    ) -> Batch:
        out = self._batch(num) if out is None else out
        arrays = self._columns(out)
        native = self._native.sample(num, uniforms, out.keys, out.probability, arrays, seconds)
        evenly = self._told(native, seconds)
        return out if evenly == out.evenly else Batch(out.rows, out.keys, out.probability, evenly)


def store() -> Any:
    """Import the native library and return it."""
    try:
        from hocket.replay.store import _store  # pyright: ignore[reportAttributeAccessIssue]
    except ImportError as error:
        raise RuntimeError(
            "hocket was installed without its replay store, because a C++ compiler or the headers "
            "of Python were missing. Install both (on Debian with `apt-get install g++ "
            "python3-dev`), then install hocket again."
        ) from error
    return _store


def _count(what: str, number: int) -> int:
    try:
        count = operator.index(number)
    except TypeError:
        raise ValueError(f"{what} must be a whole number, found {number!r}.") from None
    if not 0 <= count < 2**32:
        raise ValueError(f"{what} must be from 0 to 2**32 - 1, found {count}.")
    return count


def _select(what: str, name: str) -> int:
    names = get_args(Select)
    if name not in names:
        raise ValueError(unknown(what, name, names))
    return names.index(name)


def _limits(
    samples_per_insert: float | None, tolerance: float | None, min_size: int
) -> tuple[float, float]:
    if samples_per_insert is None:
        if tolerance is not None:
            raise ValueError(f"tolerance={tolerance} has no effect without samples_per_insert.")
        return -math.inf, math.inf
    if not 0 < samples_per_insert < math.inf:
        raise ValueError(f"samples_per_insert must be above 0, found {samples_per_insert}.")
    if tolerance is None:
        raise ValueError(
            "samples_per_insert needs a tolerance: the number of samples by which inserting may be "
            "ahead of sampling, or behind it. Use the size of a few batches."
        )
    middle = min_size * samples_per_insert
    return middle - tolerance, middle + tolerance
