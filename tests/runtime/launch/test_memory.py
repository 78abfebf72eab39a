"""The layout of the memory that processes share."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from hocket import Place, Plan, averaged, fragment, trace
from hocket.runtime.launch import launch_named
from hocket.runtime.launch.memory import memory_map
from tests.toys import Toy


def test_the_memory_of_a_plan_is_for_what_is_summed() -> None:
    """A narrow float is averaged as a wider one, and every array begins on a cache line."""

    class Narrow(Toy):
        @fragment(role="learn")
        def update(self, w: Any, key: Any, xs: Any) -> Any:
            loss = self.loss(w, xs)
            means = averaged([jnp.full(200_000, loss, jnp.bfloat16), jnp.full(3, loss)])
            return w, key, means[0].astype(jnp.float32).mean()

    places = (Place("all", ("env", "act", "learn"), replicas=2),)
    plan = Plan(trace(Narrow(), 8), places, launch=launch_named("processes"))
    _, nbytes = memory_map(plan).averages["all"]
    assert nbytes >= 2 * 2 * (4 * 200_000 + 64)
