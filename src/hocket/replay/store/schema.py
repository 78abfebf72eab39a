"""The columns of a replay table: their names, dtypes and shapes.

Schema.parse("obs:float32:4 action:int32 reward:float32")
Schema.parse("obs:uint8:84x84*4 reward:float32")     # a row refers to 4 frames, 84 x 84 each
Schema.of({"obs": batch_of_obs, "action": batch_of_actions})
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

_COLUMN = re.compile(
    r"(?P<name>[^:\s]+):(?P<dtype>\w+)(:(?P<shape>\d+(x\d+)*)?)?(\*(?P<frames>[1-9]\d*))?"
)


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Each row has an array of this dtype and shape, or refers to `frames` such arrays.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()
    frames: int = 0
    """The number of frames per row; 0 for an array that is stored in the row itself."""

    @property
    def bytes(self) -> int:
        """The bytes of the array in one row, or of one frame."""
        return self.dtype.itemsize * math.prod(self.shape)

    @property
    def given(self) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """The dtype and shape of the column's data in one inserted row.

        A row refers to frames by their numbers, so a column of frames takes these numbers.
        """
        return (np.dtype(np.uint64), (self.frames,)) if self.frames else (self.dtype, self.shape)

    @property
    def drawn(self) -> tuple[int, ...]:
        """The shape of the column in one sampled row."""
        return (self.frames, *self.shape) if self.frames else self.shape

    @property
    def words(self) -> str:
        """The column as text: `obs float32[4]`, `image uint8[4, 84, 84]`, or `action int32`."""
        return f"{self.name} {self.dtype.name}{list(self.drawn) or ''}"

    def __str__(self) -> str:
        shape = ":" + "x".join(map(str, self.shape)) if self.shape else ""
        return f"{self.name}:{self.dtype.name}{shape}" + (f"*{self.frames}" if self.frames else "")


@dataclass(frozen=True)
class Schema:
    """The columns of a table, in order."""

    columns: tuple[Column, ...]

    @classmethod
    def parse(cls, text: str) -> Schema:
        """Read `name:dtype:shape` for each column; without a shape, a row has one number."""
        return cls(tuple(_parse(word) for word in text.split()))

    @classmethod
    def of(cls, batch: Mapping[str, Any]) -> Schema:
        """Return the schema of batches like this one, whose first axis counts the rows."""
        columns = []
        for name, values in batch.items():
            array = np.asarray(values)
            if not array.ndim:
                raise ValueError(f"`{name}` must have a value for each row, found {array!r}.")
            columns.append(Column(name, array.dtype, array.shape[1:]))
        return cls(tuple(columns))

    def __post_init__(self) -> None:
        if not self.columns:
            raise ValueError('a schema needs at least one column, such as "obs:float32:4".')
        names = [column.name for column in self.columns]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"columns must have different names, found {sorted(twice)} twice.")
        for column in self.columns:
            if column.dtype.hasobject or not column.bytes:
                raise ValueError(
                    f"column `{column.name}` is {column.dtype} {list(column.shape)}, but a row has "
                    f"a fixed number of bytes: use numbers, and no axis of length 0."
                )
            if not _is_plain(column):
                raise ValueError(
                    f"column `{column.name}` is {column.dtype!r}: use numbers in the byte order of "
                    f"this machine, and names without spaces and colons."
                )
        frames = {(column.dtype, column.shape) for column in self.columns if column.frames}
        if len(frames) > 1:
            raise ValueError(f"all frames of a table need the same dtype and shape, found {self}.")

    def __str__(self) -> str:
        return " ".join(map(str, self.columns))


def _parse(word: str) -> Column:
    match = _COLUMN.fullmatch(word)
    if not match:
        raise ValueError(
            f"`{word}` is no column. Write name:dtype:shape, such as `obs:float32:4` or "
            f"`image:uint8:84x84x3`; name:dtype for one number per row, such as `action:int32`; "
            f"`image:uint8:84x84*4` for four frames per row."
        )
    try:
        dtype = np.dtype(match["dtype"])
    except TypeError:
        if not hasattr(ml_dtypes, match["dtype"]):
            raise ValueError(
                f"column `{match['name']}` has the unknown dtype `{match['dtype']}`. Use a dtype "
                f"of numpy, such as float32, int32 or uint8, or bfloat16."
            ) from None
        dtype = np.dtype(getattr(ml_dtypes, match["dtype"]))
    shape = tuple(map(int, match["shape"].split("x"))) if match["shape"] else ()
    return Column(match["name"], dtype, shape, int(match["frames"] or 0))


def _is_plain(column: Column) -> bool:
    """Return True if parsing the text of a column gives the same column again."""
    try:
        return _parse(str(column)) == column
    except ValueError:
        return False
