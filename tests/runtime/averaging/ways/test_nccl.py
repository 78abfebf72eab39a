"""Means by NCCL, as far as they can be tested without GPUs."""

from __future__ import annotations

import pytest

from hocket.runtime.averaging.ways import nccl
from hocket.system.native import Unavailable


def test_without_nccl_the_reason_says_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "_candidates", lambda: iter(["nowhere/libnccl.so.2"]))
    with pytest.raises(Unavailable, match=r"NCCL was not found.*jax\[cuda13\].*nowhere"):
        nccl.new_id()
