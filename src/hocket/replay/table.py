"""A replay table in this process: rows of a schema, drawn by priority or by age.

    table = Table("obs:float32:4 action:int32", capacity=100_000)
    keys = table.insert({"obs": obs, "action": action})          # [n, 4], [n]; the highest priority
    batch = table.sample(256)
    table.update(batch.keys, priority)                           # of rows that are still there

It is native code, usable without the rest of hocket; threads may share one table. Priorities
arrive already raised to alpha, so that alpha = 0 is uniform sampling.

Schaul et al. 2016, "Prioritized Experience Replay": https://arxiv.org/abs/1511.05952
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from hocket.replay.schema import Column, Schema

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

Select = Literal["prioritized", "uniform", "oldest", "newest", "highest", "lowest"]
"""Which row: at random in proportion to its priority, any, or the one with the most extreme age or
priority. Reverb calls them Prioritized, Uniform, Fifo, Lifo, MaxHeap and MinHeap."""

_OK, _WAIT = 0, 1


@dataclass(frozen=True)
class Batch:
    """Rows that were drawn."""

    rows: dict[str, NDArray[Any]]
    """`[n, ...]` of each column; of a column of frames `[n, frames, ...]`."""
    keys: NDArray[np.uint32]
    """`[n, 2]`: slot, and how often it was written. A key never names a later row."""
    probability: NDArray[np.float32]
    """Of drawing each of the rows, `[n]`; importance weights are made of it."""
    evenly: bool
    """Whether all priorities were zero, so that rows were drawn evenly."""


@dataclass(frozen=True)
class Contents:
    """All rows of a table, the oldest first."""

    rows: dict[str, NDArray[Any]]
    keys: NDArray[np.uint32]
    """`[n, 2]`, as in a batch."""
    priority: NDArray[np.float32]


class Table:
    """A table of at most `capacity` rows.

    When it is full, `remover` says which row an insert replaces; `sampler` says which are drawn.
    Rows that were drawn `max_times_sampled` times are removed.

    Sampling begins with `min_size` rows. With `samples_per_insert`, the rows inserted times that
    minus the rows sampled stay within `tolerance` of where sampling begins: whoever is ahead
    waits, up to the `timeout` of the request, and then gets a TimeoutError; for ever, if it is
    None.
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
        self.schema = Schema.parse(schema) if isinstance(schema, str) else schema
        columns = self.schema.columns
        capacity = _count("capacity", capacity)
        if num_frames is None:
            num_frames = 2 * capacity if any(column.frames for column in columns) else 0
        least, most = _limits(samples_per_insert, tolerance, min_size)
        self._native = _store().Table(
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
        self._given = [(column.name, *column.given) for column in columns]

    @classmethod
    def restore(cls, path: str | Path) -> Table:
        """The table that `save` wrote there: the same rows and keys, and the draws go on."""
        with open(path, "rb"):  # says what is the matter with the path itself
            pass
        table, store = cls.__new__(cls), _store()
        try:
            table._native, schema = store.restore(os.fsdecode(path))
        except RuntimeError as error:
            raise ValueError(f"{error}.") from None
        table.schema = Schema.parse(schema)
        table._given = [(column.name, *column.given) for column in table.schema.columns]
        return table

    def insert(
        self,
        rows: Mapping[str, Any],
        priority: ArrayLike | None = None,
        *,
        timeout: float | None = None,
    ) -> NDArray[np.uint32]:
        """Add rows, `[n, ...]` of each column, the oldest first; their keys `[n, 2]`.

        Without priorities they have the highest so far. All of them are added or none.
        """
        arrays = self._arrays(rows)
        num = len(arrays[0])
        keys = np.empty((num, 2), np.uint32)
        if priority is not None:
            priority = _floats("priority", priority, num)
        seconds = _seconds(timeout)
        self._told(self._native.insert(num, arrays, priority, keys, seconds), seconds)
        return keys

    def sample(
        self,
        num: int,
        *,
        uniforms: ArrayLike | None = None,
        out: Batch | None = None,
        timeout: float | None = None,
    ) -> Batch:
        """Draw rows, one from each of `num` equal parts of the total priority.

        `uniforms` in [0, 1) say where in its part; without, the table draws them, from its seed. A
        batch of before in `out`, of as many rows, is written over: its arrays are returned.
        """
        if uniforms is not None:
            uniforms = _below_one(_floats("uniforms", uniforms, num), uniforms)
        if out is None or len(out.keys) != num:
            out = self._batch(num)
        arrays, seconds = self._columns(out), _seconds(timeout)
        native = self._native.sample(num, uniforms, out.keys, out.probability, arrays, seconds)
        evenly = self._told(native, seconds)
        return out if evenly == out.evenly else Batch(out.rows, out.keys, out.probability, evenly)

    def update(self, keys: ArrayLike, priority: ArrayLike) -> int:
        """Give rows other priorities; how many keys were of rows that are gone, and left out."""
        keys = np.asarray(keys)
        if keys.ndim != 2 or keys.shape[1] != 2 or keys.dtype.kind not in "iu":
            raise ValueError(
                f"keys are an array uint32 [n, 2] from `sample`, found {keys.dtype} "
                f"{list(keys.shape)}."
            )
        if keys.dtype != np.uint32:
            if keys.size and not (keys.min() >= 0 and keys.max() < 2**32):
                raise ValueError(f"keys are from 0 to 2**32 - 1, found {keys.min()}, {keys.max()}.")
            keys = keys.astype(np.uint32)
        keys = np.ascontiguousarray(keys)
        priority = _floats("priority", priority, len(keys))
        return self._told(self._native.update(len(keys), keys, priority))

    def add_frames(self, frames: ArrayLike) -> NDArray[np.uint64]:
        """Store frames `[n, ...]`; rows refer to them by the numbers that come back, `[n]`.

        The newest `num_frames` are kept. Rows whose frames are gone are removed.
        """
        column = next((column for column in self.schema.columns if column.frames), None)
        if column is None:
            raise ValueError(f"this table has no column of frames: {self.schema}.")
        array = np.asarray(frames)
        _check(column.name, array, column.dtype, column.shape)
        data = _plain((np.ascontiguousarray(array),))[0]
        first = self._told(self._native.add_frames(len(array), data))
        return np.arange(first, first + len(array), dtype=np.uint64)

    def contents(self) -> Contents:
        """Every row there is now, the oldest first."""
        while True:  # others may insert meanwhile
            num = len(self)
            rows = {c.name: np.empty((num, *c.drawn), c.dtype) for c in self.schema.columns}
            keys, priority = np.empty((num, 2), np.uint32), np.empty(num, np.float32)
            if self._native.look(num, keys, priority, _plain(tuple(rows.values()))):
                return Contents(rows, keys, priority)

    def save(self, path: str | Path) -> None:
        """Write the table of this moment to a file; other threads may go on with it meanwhile.

        The file has its name once it is complete. Rows that are replaced before they are written
        are kept for it in memory.
        """
        try:
            self._native.save(os.fsdecode(path), str(self.schema))
        except RuntimeError as error:
            raise OSError(f"{error}.") from None

    def clear(self) -> None:
        """Remove all rows; limits and the highest priority are as in the beginning."""
        self._native.clear()

    def close(self) -> None:
        """Whoever waits gets an error now, and whoever asks for something later."""
        self._native.close()

    def info(self) -> dict[str, Any]:
        """How many rows there are, came, went and were drawn; `bytes` are those of a full one."""
        return self._native.counts()

    @property
    def capacity(self) -> int:
        """How many rows there may be."""
        return self.info()["capacity"]

    def __repr__(self) -> str:
        info = self.info()
        return f"Table({str(self.schema)!r}, {info['size']:,} of {info['capacity']:,} rows)"

    def __len__(self) -> int:
        return self.info()["size"]

    def _batch(self, num: int) -> Batch:
        if not 0 < num <= 2**30:
            raise ValueError(f"a sample has from 1 to 2**30 rows, found {num}.")
        columns = self.schema.columns
        return Batch(
            rows={c.name: np.empty((num, *c.drawn), c.dtype) for c in columns},
            keys=np.empty((num, 2), np.uint32),
            probability=np.empty(num, np.float32),
            evenly=False,
        )

    def _columns(self, batch: Batch) -> tuple[Any, ...]:
        """The arrays of a batch that rows are written to."""
        arrays = []
        for column in self.schema.columns:
            array = batch.rows.get(column.name)
            shape = (len(batch.keys), *column.drawn)
            if array is None or array.dtype != column.dtype or array.shape != shape:
                raise ValueError(f"`out` is a batch of another table than one of {self.schema}.")
            arrays.append(array)
        return _plain(tuple(arrays))

    def _arrays(self, rows: Mapping[str, Any]) -> tuple[Any, ...]:
        """The columns of a batch, as the native part takes them."""
        if len(rows) != len(self._given):
            raise _mismatch(self.schema, rows)
        arrays = []
        for name, dtype, shape in self._given:
            if name not in rows:
                raise _mismatch(self.schema, rows)
            array = rows[name]
            if not isinstance(array, np.ndarray):
                array = np.asarray(array)
            if array.dtype != dtype or array.shape[1:] != shape or not array.ndim:
                _check(name, array, dtype, shape)
            if len(array) != len(rows[self._given[0][0]]):
                raise ValueError(
                    f"all columns have as many rows, found "
                    f"{ {name: len(rows[name]) for name, _, _ in self._given} }."
                )
            arrays.append(array if array.flags.c_contiguous else np.ascontiguousarray(array))
        return _plain(tuple(arrays))

    def _told(self, native: tuple[int, str, Any], timeout: float = 0.0) -> Any:
        status, why, found = native
        if status == _OK:
            return found
        if status == _WAIT:
            raise TimeoutError(f"not within {timeout:g} s: {why}.")
        raise ValueError(f"{why}.")


def check_installed() -> None:
    """Say what to do, if hocket has no native replay store here."""
    _store()


def _store() -> Any:
    try:
        from hocket.replay import _store as store  # pyright: ignore[reportAttributeAccessIssue]
    except ImportError as error:
        raise RuntimeError(
            "hocket was installed without its replay store, because no C++ compiler or no headers "
            "of Python were found then. Install them (on Debian: `apt-get install g++ "
            "python3-dev`), and `pip install` hocket again."
        ) from error
    return store


def _count(what: str, number: int) -> int:
    try:
        count = operator.index(number)
    except TypeError:
        raise ValueError(f"{what} is a whole number, found {number!r}.") from None
    if not 0 <= count < 2**32:
        raise ValueError(f"{what} is a count below 2**32, found {count}.")
    return count


def _seconds(timeout: float | None) -> float:
    if timeout is None:
        return math.inf
    if not timeout >= 0:
        raise ValueError(f"a timeout is in seconds, from 0 on, or None, found {timeout}.")
    return float(timeout)


def _below_one(uniforms: NDArray[np.float32], given: ArrayLike) -> NDArray[np.float32]:
    """Of those below 1 none is 1 because it was rounded."""
    if uniforms is given:
        return uniforms
    below = np.nextafter(np.float32(1), np.float32(0))
    return np.where(np.less(given, 1.0), np.minimum(uniforms, below), uniforms)


def _select(what: str, name: str) -> int:
    names = get_args(Select)
    if name not in names:
        raise ValueError(f"there is no {what} `{name}`: use one of {', '.join(names)}.")
    return names.index(name)


def _limits(
    samples_per_insert: float | None, tolerance: float | None, min_size: int
) -> tuple[float, float]:
    if samples_per_insert is None:
        if tolerance is not None:
            raise ValueError(f"tolerance={tolerance} is for tables with samples_per_insert.")
        return -math.inf, math.inf
    if not 0 < samples_per_insert < math.inf:
        raise ValueError(f"samples_per_insert is above 0, found {samples_per_insert}.")
    if tolerance is None:
        raise ValueError(
            "samples_per_insert needs a tolerance: how many samples inserting and sampling may be "
            "ahead of each other. A few batches are usual."
        )
    middle = min_size * samples_per_insert
    return middle - tolerance, middle + tolerance


def _floats(what: str, values: ArrayLike, num: int) -> NDArray[np.float32]:
    array = np.ascontiguousarray(values, np.float32)
    if array.shape != (num,):
        raise ValueError(f"{what} is one number for each of {num} rows, found {list(array.shape)}.")
    return array


def _check(name: str, array: NDArray[Any], dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    if array.dtype != dtype or array.shape[1:] != shape or not array.ndim:
        raise ValueError(
            f"`{name}` is a batch of {dtype} {list(shape)}, found {array.dtype} "
            f"{list(array.shape)} (the first axis is the batch)."
        )


def _mismatch(schema: Schema, rows: Mapping[str, Any]) -> ValueError:
    found = " ".join(
        str(Column(name, x.dtype, x.shape[1:]))
        for name, x in ((name, np.asarray(x)) for name, x in rows.items())
    )
    return ValueError(f"the table has the columns {schema}, found {found or 'none'}.")


def _plain(arrays: tuple[NDArray[Any], ...]) -> tuple[NDArray[Any], ...]:
    """The same memory in dtypes that buffers know: numpy has none for bfloat16 and its like."""
    if all(array.dtype.isbuiltin == 1 for array in arrays):
        return arrays
    return tuple(a.view(f"V{a.dtype.itemsize}") if a.dtype.isbuiltin != 1 else a for a in arrays)
