"""A plan of one place: blocks, states, and the devices that share its environments."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from hocket import Place, Plan, PlanError, trace
from hocket.core.plan.checks import check
from hocket.runtime.executor import advance
from hocket.runtime.fused import Fused
from hocket.testing import difference
from tests.toys import Toy

ALL = ("env", "act", "learn")


def fused(
    on: tuple[str, ...] = (), replicas: int = 1, max_block: int = 8, num_envs: int = 8
) -> Fused:
    place = Place("all", run=ALL, on=on, replicas=replicas)
    executor = Fused(check(Plan(trace(Toy(), num_envs), (place,))), max_block)
    executor.start(jax.random.key(0))
    return executor


def test_blocks_of_any_size_give_the_same_run() -> None:
    one, many = fused(), fused()
    whole = advance(one, 8)
    parts = [many.run(n)[1] for n in (1, 3, 4)]
    assert difference(one.state(), many.state()) == 0.0
    for name, rows in whole.items():
        np.testing.assert_array_equal(rows, np.concatenate([p[name] for p in parts]))


def test_a_block_is_compiled_once_and_timed() -> None:
    executor = fused()
    executor.run(2)
    compiled = executor.timings.compile
    assert compiled > 0 and executor.timings.trace > 0 and executor.timings.run > 0
    executor.run(5)
    assert executor.timings.compile == compiled
    assert "s compiling" in str(executor.timings)


def test_no_more_than_a_block_at_once() -> None:
    executor = fused(max_block=3)
    assert executor.run(5)[0] == 3
    assert len(advance(executor, 7)["loss"]) == 7


def test_states_stay_usable_after_the_next_run() -> None:
    executor = fused()
    first = executor.state()
    executor.run(1)
    executor.load(first)
    assert difference(executor.state(), first) == 0.0
    executor.run(1)
    assert np.isfinite(first.w).all()


def test_the_environment_axis_is_shared_out() -> None:
    executor = fused(on=("cpu:0", "cpu:1"))
    executor.run(1)
    state: Any = executor._state
    assert len(state.x.sharding.device_set) == 2
    assert state.x.addressable_shards[0].data.shape == (4, 4)
    assert state.w.addressable_shards[0].data.shape == (4,)


def test_environments_and_devices_must_fit() -> None:
    with pytest.raises(PlanError, match="9 environments cannot be shared equally by 2 devices"):
        fused(on=("cpu:0", "cpu:1"), num_envs=9)
    with pytest.raises(
        PlanError, match="3 devices cannot be shared equally by 4 replicas of `all`"
    ):
        fused(on=("cpu:0", "cpu:1", "cpu:2"), replicas=4)
    with pytest.raises(
        PlanError, match=r"6 environments cannot be .* the 4 devices of `all`: .* of 4\."
    ):
        fused(on=("cpu:0", "cpu:1", "cpu:2", "cpu:3"), num_envs=6, replicas=2)
    with pytest.raises(ValueError, match=r"unknown device `gpu:7`.*cpu:0"):
        fused(on=("gpu:7",))


@pytest.mark.parametrize(("seeds", "devices"), [(3, 3), (6, 3), (5, 1), (8, 4)])
def test_seeds_use_as_many_devices_as_can_have_equally_many(seeds: int, devices: int) -> None:
    place = Place("all", run=ALL, on=tuple(f"cpu:{n}" for n in range(4)))
    executor = Fused(check(Plan(trace(Toy(), 8), (place,))), 8, seeds)
    executor.start(jax.random.split(jax.random.key(0), seeds))
    assert len(executor.state().w.sharding.device_set) == devices
