"""Means in two steps: on each device, and between the leaders of the devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from hocket.errors import PlanError
from hocket.runtime.averaging import Space
from hocket.runtime.averaging.groups import InMemory
from hocket.runtime.averaging.ways import nccl
from hocket.runtime.averaging.ways.shm import OnHost
from hocket.system.native import Unavailable
from hocket.system.shared_memory import MemoryFile
from tests.runtime.averaging.replicas import FOUR, Replicas, asked, joined_alone, narrow_floats


def test_a_narrow_float_is_rounded_once_in_two_steps(tmp_path: Path) -> None:
    """The bits of a run do not depend on which way was the faster."""
    parts = [jnp.asarray(narrow_floats(i), jnp.bfloat16).astype(jnp.float32) for i in range(4)]
    mean = jnp.mean(jnp.stack(parts), 0).astype(jnp.bfloat16).astype(jnp.float32)
    for rounded in Replicas("narrow", FOUR, "hier", tmp_path).results():
        np.testing.assert_array_equal(rounded, mean)


def test_a_leader_without_a_second_step_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    averaging, closed = asked(FOUR, "hier"), list[OnHost]()
    space = Space(MemoryFile.create(averaging.nbytes), 0, averaging.nbytes)

    def refused() -> Any:
        raise Unavailable("there is no NCCL")

    monkeypatch.setattr(nccl.AVERAGE, "listen", lambda *_: InMemory(refused))
    monkeypatch.setattr(OnHost, "close", lambda joined: closed.append(joined))
    with pytest.raises(PlanError, match="there is no NCCL"):
        joined_alone(averaging, 0, space)
    assert len(closed) == 1


def test_other_sizes_are_an_error_in_both_steps(tmp_path: Path) -> None:
    replicas = Replicas("other_size", FOUR, "hier", tmp_path)
    errors = replicas.results()
    assert all("the replicas run different programs" in error for error in errors), errors
