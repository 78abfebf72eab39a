"""Reading pickled data of another machine, which may be plain data and nothing that runs code.

A pickle can name any function and have it called when it is read. `loads` refuses all names except
numpy's arrays and hocket's own records, so a node cannot make the run execute anything.
"""

from __future__ import annotations

import dataclasses
import io
import pickle
import sys
from typing import Any

_ARRAYS = {
    ("numpy", "ndarray"), ("numpy", "dtype"),
    ("numpy._core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "scalar"),
    ("numpy._core.numeric", "_frombuffer"),
    ("builtins", "set"), ("builtins", "frozenset"), ("builtins", "slice"), ("builtins", "complex"),
}  # fmt: skip


def loads(data: bytes) -> Any:
    """Return the data of a pickle, or raise `UnpicklingError` if it is not plain."""
    return _Reader(io.BytesIO(data)).load()


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ARRAYS or module == "ml_dtypes":
            return super().find_class(module, name)
        if module.partition(".")[0] == "hocket" and module in sys.modules and "." not in name:
            record = super().find_class(module, name)
            if isinstance(record, type) and (
                dataclasses.is_dataclass(record) or issubclass(record, tuple)
            ):
                return record
        raise pickle.UnpicklingError(
            f"`{module}.{name}` came from another node, from which only plain data are read."
        )
