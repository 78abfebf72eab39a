"""The operations of a replay table, in this process or at a server."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from hocket.replay.store.schema import Column, Schema

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

_OK, _WAIT = 0, 1


@dataclass(frozen=True)
class Batch:
    """The rows of one sample."""

    rows: dict[str, NDArray[Any]]
    """Each column's array, `[n, ...]`, or `[n, frames, ...]` for a column of frames."""
    keys: NDArray[np.uint32]
    """The key of each row, `[n, 2]`: its slot, and how often that slot has been written. So no two
    rows have the same key."""
    probability: NDArray[np.float32]
    """The probability with which each row was drawn, `[n]`. Importance weights come from it."""
    evenly: bool
    """True if all priorities were zero, so that every row was equally likely."""


class Closing(ABC):
    """A resource that a `with` statement closes at its end."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()


class Access(Closing):
    """A table, in this process or at a server. Threads may share one."""

    schema: Schema
    _native: Any
    """The native table or connection. It does not check that arrays fit the schema."""
    _given: list[tuple[str, np.dtype[Any], tuple[int, ...]]]

    def insert(
        self,
        rows: Mapping[str, Any],
        priority: ArrayLike | None = None,
        *,
        timeout: float | None = None,
    ) -> NDArray[np.uint32]:
        """Add rows, `[n, ...]` in each column, and return their keys `[n, 2]`.

        The first row is the oldest. Without `priority`, new rows get the highest one so far. Either
        all rows are added or none.
        """
        arrays = self._arrays(rows)
        num = len(arrays[0])
        keys = np.empty((num, 2), np.uint32)
        if priority is not None:
            priority = _floats("priority", priority, num)
        seconds = seconds_of(timeout)
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

        `uniforms` in [0, 1) say where in its part each row lies. By default the table draws them,
        starting from its seed. If `out` is an earlier batch of as many rows, its arrays are
        overwritten and returned.
        """
        return self.ask(num, uniforms=uniforms, out=out, timeout=timeout)()

    def ask(
        self,
        num: int,
        *,
        uniforms: ArrayLike | None = None,
        out: Batch | None = None,
        timeout: float | None = None,
    ) -> Callable[[], Batch]:
        """Ask for a sample, and return a function that returns its batch. Call that function once.

        A server draws the rows as soon as it is asked. A table in this process draws them when the
        function is called.
        """
        if uniforms is not None:
            uniforms = _below_one(_floats("uniforms", uniforms, num), uniforms)
        if not 0 < num <= 2**30:
            raise ValueError(f"a sample must have from 1 to 2**30 rows, found {num}.")
        if out is not None and len(out.keys) != num:
            out = None
        return self._ask(num, uniforms, out, seconds_of(timeout))

    def batches(self, num: int, *, ahead: int = 2, timeout: float | None = None) -> Iterator[Batch]:
        """Yield samples for ever. Each is asked for `ahead` samples before it is yielded."""
        if ahead < 1:
            raise ValueError(f"ahead={ahead} must be at least 1.")
        asked = deque(self.ask(num, timeout=timeout) for _ in range(ahead))
        while True:
            batch = asked.popleft()()
            asked.append(self.ask(num, timeout=timeout))
            yield batch

    def update(self, keys: ArrayLike, priority: ArrayLike) -> int:
        """Give rows new priorities, and return the number of keys whose rows no longer exist."""
        keys = np.asarray(keys)
        if keys.ndim != 2 or keys.shape[1] != 2 or keys.dtype.kind not in "iu":
            raise ValueError(
                f"keys must be an array uint32 [n, 2] from `sample`, found {keys.dtype} "
                f"{list(keys.shape)}."
            )
        if keys.dtype != np.uint32:
            if keys.size and not (keys.min() >= 0 and keys.max() < 2**32):
                raise ValueError(
                    f"keys must be from 0 to 2**32 - 1, found {keys.min()} to {keys.max()}."
                )
            keys = keys.astype(np.uint32)
        keys = np.ascontiguousarray(keys)
        priority = _floats("priority", priority, len(keys))
        return self._told(self._native.update(len(keys), keys, priority))

    def add_frames(self, frames: ArrayLike) -> NDArray[np.uint64]:
        """Store frames `[n, ...]`, and return the numbers by which rows refer to them, `[n]`.

        The table keeps the newest `num_frames`. Rows whose frames are gone are removed.
        """
        column = next((column for column in self.schema.columns if column.frames), None)
        if column is None:
            raise ValueError(f"this table has no column of frames: {self.schema}.")
        array = np.asarray(frames)
        _check(column.name, array, column.dtype, column.shape)
        data = plain((np.ascontiguousarray(array),))[0]
        first = self._told(self._native.add_frames(len(array), data))
        return np.arange(first, first + len(array), dtype=np.uint64)

    @abstractmethod
    def clear(self) -> None:
        """Remove all rows, and reset the rate limits and the highest priority."""

    @abstractmethod
    def close(self) -> None:
        """Close the table: calls that wait, and all later calls, raise an error."""

    @abstractmethod
    def info(self) -> dict[str, Any]:
        """Return the counters of the table by name.

        `size` is the number of rows held. `inserts`, `samples` and `removals` count rows inserted,
        drawn and removed. `bytes` is the memory of a full table.
        """

    @abstractmethod
    def _ask(
        self, num: int, uniforms: NDArray[np.float32] | None, out: Batch | None, seconds: float
    ) -> Callable[[], Batch]: ...

    @property
    def capacity(self) -> int:
        """The largest number of rows that the table holds."""
        return self.info()["capacity"]

    def __len__(self) -> int:
        return self.info()["size"]

    def _use(self, native: Any, schema: Schema) -> None:
        self.schema, self._native = schema, native
        self._given = [(column.name, *column.given) for column in schema.columns]

    def _batch(self, num: int) -> Batch:
        return Batch(
            rows={c.name: np.empty((num, *c.drawn), c.dtype) for c in self.schema.columns},
            keys=np.empty((num, 2), np.uint32),
            probability=np.empty(num, np.float32),
            evenly=False,
        )

    def _columns(self, batch: Batch) -> tuple[Any, ...]:
        """Return the arrays of a batch that the native part writes rows into."""
        arrays = []
        for column in self.schema.columns:
            array = batch.rows.get(column.name)
            shape = (len(batch.keys), *column.drawn)
            if array is None or array.dtype != column.dtype or array.shape != shape:
                raise ValueError(f"`out` must be a batch with the columns {self.schema}.")
            arrays.append(array)
        return plain(tuple(arrays))

    def _arrays(self, rows: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the columns of a batch, checked and contiguous, for the native part."""
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
                    f"all columns must have the same number of rows, found "
                    f"{ {name: len(rows[name]) for name, _, _ in self._given} }."
                )
            arrays.append(array if array.flags.c_contiguous else np.ascontiguousarray(array))
        return plain(tuple(arrays))

    def _told(self, native: tuple[int, str, Any], timeout: float = 0.0) -> Any:
        """Return the answer of a native call, or raise its error."""
        status, why, answer = native
        if status == _OK:
            return answer
        if status == _WAIT:
            raise TimeoutError(f"not within {timeout:g} s: {why}.")
        raise ValueError(f"{why}.")


def seconds_of(timeout: float | None) -> float:
    if timeout is None:
        return math.inf
    if not timeout >= 0:
        raise ValueError(f"a timeout must be None or at least 0 seconds, found {timeout}.")
    return float(timeout)


def _below_one(uniforms: NDArray[np.float32], given: ArrayLike) -> NDArray[np.float32]:
    """Keep float64 numbers below 1 from becoming 1 when they are rounded to float32."""
    if uniforms is given:
        return uniforms
    below = np.nextafter(np.float32(1), np.float32(0))
    return np.where(np.less(given, 1.0), np.minimum(uniforms, below), uniforms)


def _floats(what: str, values: ArrayLike, num: int) -> NDArray[np.float32]:
    array = np.ascontiguousarray(values, np.float32)
    if array.shape != (num,):
        raise ValueError(
            f"{what} must be one number for each of {num} rows, found shape {list(array.shape)}."
        )
    return array


def _check(name: str, array: NDArray[Any], dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    if array.dtype != dtype or array.shape[1:] != shape or not array.ndim:
        raise ValueError(
            f"`{name}` must be a batch of {dtype} {list(shape)}, found {array.dtype} "
            f"{list(array.shape)} (the first axis counts the rows)."
        )


def _mismatch(schema: Schema, rows: Mapping[str, Any]) -> ValueError:
    columns = " ".join(
        str(Column(name, x.dtype, x.shape[1:]))
        for name, x in ((name, np.asarray(x)) for name, x in rows.items())
    )
    return ValueError(f"the table has the columns {schema}, found {columns or 'none'}.")


def plain(arrays: tuple[NDArray[Any], ...]) -> tuple[NDArray[Any], ...]:
    """View arrays as plain bytes where the buffer protocol lacks their dtype, as for bfloat16."""
    if all(array.dtype.isbuiltin == 1 for array in arrays):
        return arrays
    return tuple(a.view(f"V{a.dtype.itemsize}") if a.dtype.isbuiltin != 1 else a for a in arrays)
