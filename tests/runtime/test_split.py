from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental import io_callback

from hocket import Channel, Place, Plan, PlanError, fragment, trace
from hocket.runtime.executor import advance
from hocket.runtime.fused import Fused
from hocket.runtime.split import InstanceError, Split
from hocket.testing import difference
from tests.toys import Toy

SPLIT = (Place("actor", run=("env", "act")), Place("learner", run=("learn",)))
APART = (Place("env", run=("env",)), Place("act", run=("act",)), Place("learner", run=("learn",)))
LOOP = ("env", "act", "learn")


def run(places: tuple[Place, ...], iterations: int = 3) -> tuple[Any, Any]:
    plan = Plan(trace(Toy(), 8, exact=True), places)
    executor = Fused(plan) if len(places) == 1 else Split(plan)
    executor.start(jax.random.key(0))
    metrics = advance(executor, iterations)
    return executor.state(), metrics


@pytest.mark.parametrize(
    "places",
    [
        SPLIT,
        APART,
        (Place("a", ("env", "act"), on=("cpu:0",)), Place("b", ("learn",), on=("cpu:1",))),
        (Place("a", ("env", "act"), replicas=4), Place("b", ("learn",))),
        (Place("a", ("env",), replicas=4), Place("b", ("act",), replicas=2), Place("c", ["learn"])),
        (Place("a", ("env", "act"), on=("cpu:0", "cpu:1"), replicas=2), Place("b", ("learn",))),
        (Place("a", ("env", "act"), replicas=2), Place("b", ("learn",), replicas=4)),
        (Place("a", ("env", "act")), Place("b", ("learn",), on=("cpu:0", "cpu:1"), replicas=2)),
        (Place("a", ("env", "act"), on=("cpu:2", "cpu:3")), Place("b", ("learn",))),
    ],
)  # fmt: skip
def test_every_kind_of_place(places: tuple[Place, ...]) -> None:
    expected, rows = run((Place("all", run=LOOP),))
    found, others = run(places)
    assert difference(found, expected) < 1e-5
    for name in rows:
        np.testing.assert_allclose(others[name], rows[name], rtol=1e-4, atol=1e-5)


class Failing(Toy):
    @fragment(role="learn")
    def update(self, w: Any, key: Any, xs: Any) -> Any:
        def fail(x: Any) -> Any:
            raise RuntimeError("the learner is on fire")

        loss = io_callback(fail, jax.ShapeDtypeStruct((), w.dtype), w)
        return w, key, loss


def test_a_failure_ends_the_run_with_the_name_of_the_instance() -> None:
    executor = Split(Plan(trace(Failing(), 8), SPLIT))
    executor.start(jax.random.key(0))
    with pytest.raises(
        InstanceError, match=r"(?s)^the instance `learner/0` failed:\nTraceback.*fire"
    ):
        advance(executor, 3)


def test_channels_that_do_not_wait_are_refused() -> None:
    plan = Plan(trace(Toy(), 8), SPLIT, {"actor -> learner": Channel(lag=1)})
    with pytest.raises(PlanError, match=r"`actor -> learner` has lag 1; only synchronous"):
        Split(plan)
