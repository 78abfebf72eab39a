"""Every executor runs blocks that add up, and reports how long they took."""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hocket.runtime.executor import Executor, Timings, advance, by_seed


class InBlocks:
    """An executor that runs at most three iterations at once, and numbers them."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.done = 0

    def run(self, iterations: int) -> tuple[int, dict[str, Any]]:
        self.asked.append(iterations)
        count = min(iterations, 3)
        rows = np.arange(self.done, self.done + count)
        self.done += count
        return count, {"number": rows, "pair": np.stack([rows, -rows], 1)}


def test_blocks_are_run_until_there_are_enough() -> None:
    blocks = InBlocks()
    metrics = advance(cast(Executor, blocks), 7)
    assert blocks.asked == [7, 4, 1]
    np.testing.assert_array_equal(metrics["number"], np.arange(7))
    assert metrics["pair"].shape == (7, 2)


@pytest.mark.parametrize(("seeds", "axis"), [(None, ()), (5, (5,))])
def test_several_agents_have_an_axis_of_their_own(seeds: int | None, axis: tuple[int, ...]) -> None:
    specs = {"w": jax.ShapeDtypeStruct((4, 2), jnp.bfloat16), "n": jax.ShapeDtypeStruct((), int)}
    many = by_seed(specs, seeds)
    assert (many["w"].shape, many["w"].dtype) == ((*axis, 4, 2), jnp.bfloat16)
    assert many["n"].shape == axis


def test_timings_say_what_took_long() -> None:
    timings = Timings(trace=0.26, compile=3.0, run=12.34, profile=9.0)
    assert str(timings) == "0.3 s tracing, 3.0 s compiling, 12.3 s running"
