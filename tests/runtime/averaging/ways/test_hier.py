"""Means in two steps: on each device, and between the leaders of the devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
import pytest

from hocket.errors import PlanError
from hocket.runtime.averaging import Space
from hocket.runtime.averaging.groups import InMemory
from hocket.runtime.averaging.ways import nccl
from hocket.runtime.averaging.ways.hier import InTwoSteps
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


class Step:
    """A group of one step, which counts, and gives `mean` or what its leader sends."""

    def __init__(self, mean: float, root: float = 0.0) -> None:
        self.mean, self.root = mean, root
        self.log: list[Any] = []

    def __call__(self, *xs: Any, root: int = -1) -> list[Any]:
        self.log.append((root, [(str(x.dtype), float(x.ravel()[0])) for x in xs]))
        return [jnp.full(x.shape, self.mean if root < 0 else self.root, x.dtype) for x in xs]

    def counts(self) -> tuple[int, int, int]:
        return 2, 10, 7

    def check(self) -> None:
        self.log.append("check")

    def close(self) -> None:
        self.log.append("close")

    def free(self) -> None:
        self.log.append("free")


def test_only_the_leader_takes_the_second_step() -> None:
    """The mean of a device goes to the leaders, and what they agree on goes back to all of it."""
    x = jnp.ones(3, jnp.bfloat16)
    for leaders in (Step(4.0), None):
        mine: Any = Step(2.0, root=4.0)
        joined = InTwoSteps(mine, cast(Any, leaders))
        (mean,) = joined(x)
        assert mean.dtype == jnp.bfloat16 and (mean == 4).all()
        passed_on = 4.0 if leaders else 2.0  # the others' own array does not matter
        assert mine.log == [(-1, [("float32", 1.0)]), (0, [("float32", passed_on)])]
        assert leaders is None or leaders.log == [(-1, [("float32", 2.0)])]


def test_a_leader_counts_and_ends_both_steps() -> None:
    mine, leaders = Step(2.0), Step(4.0)
    joined = InTwoSteps(cast(Any, mine), cast(Any, leaders))
    assert joined.counts() == (4, 20, 14)
    assert InTwoSteps(cast(Any, mine)).counts() == (2, 10, 7)
    joined.check()
    joined.close()
    joined.free()
    assert mine.log == leaders.log == ["check", "close", "free"]
