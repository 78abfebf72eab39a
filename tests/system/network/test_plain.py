"""Data of another node are read, and whatever could run code is not."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from hocket.runtime.launch import Fate
from hocket.runtime.launch.control import Failure
from hocket.system.network import Network
from hocket.system.network.plain import loads


def there_and_back(data: Any) -> Any:
    return loads(pickle.dumps(data, protocol=5))


def test_plain_data_and_records() -> None:
    for data in (
        ("done", {(1, 2): [3.5, None], "x": b"7"}), {1, 2}, frozenset({"a"}), 2j,
        Fate("ended", "why"), Failure("a traceback"),
    ):  # fmt: skip
        assert there_and_back(data) == data


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "bfloat16", "S3"])
def test_arrays(dtype: str) -> None:
    numpy_dtype = jnp.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    for array in (np.ones((3, 2), numpy_dtype), np.ones((4, 2), numpy_dtype)[::2].T):
        back = there_and_back(array)
        assert back.dtype == array.dtype and (back == array).all()
    scalar = np.ones((), numpy_dtype)[()]
    assert there_and_back(scalar) == scalar


class Harmful:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_what_could_run_code_is_refused(tmp_path: Path) -> None:
    harmful = Harmful(tmp_path / "made")
    with pytest.raises(pickle.UnpicklingError, match=r"`posix\.mkdir` came from another node"):
        there_and_back(("done", {"x": harmful}))
    assert not harmful.path.exists()
    # Not even through the modules that a harmless one has imported.
    through = b"cml_dtypes\n_finfo.np.lib._utils_impl.os.mkdir\n(V" + bytes(harmful.path) + b"\ntR."
    with pytest.raises(pickle.UnpicklingError, match=r"`ml_dtypes\._finfo.*came from another node"):
        loads(b"\x80\x04" + through)
    assert not harmful.path.exists()
    # Functions and modules of hocket are no plain data either.
    for name in (b"hocket.system.names\nfind", b"hocket.__main__\nmain", b"ml_dtypes\nfinfo"):
        with pytest.raises(pickle.UnpicklingError, match="came from another node"):
            loads(b"c" + name + b"\n.")


def test_a_class_is_not_changed() -> None:
    changes = b"(N(dVhow\nVby another node\nst"  # its state: no dict, and one of attributes
    with pytest.raises(pickle.UnpicklingError, match="another node has sent changes of `Fate`"):
        loads(b"chocket.runtime.launch\nFate\n" + changes + b"b.")
    assert Fate("ended").how == "ended"


def test_a_record_whose_making_has_effects_is_refused() -> None:
    with pytest.raises(
        pickle.UnpicklingError, match=r"`hocket\.system\.network\.Network` came from"
    ):
        there_and_back(Network())
