"""Plans of several instances compute what the fused program computes, and fail by name."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from hocket import Place, Plan, fragment, trace
from hocket.runtime.distributed import Split
from hocket.runtime.executor import advance
from hocket.runtime.fused import Fused
from hocket.runtime.launch.watch import InstanceError
from hocket.testing import difference
from tests.toys import Toy, ToyState

SPLIT = (Place("actor", run=("env", "act")), Place("learner", run=("learn",)))
APART = (Place("env", run=("env",)), Place("act", run=("act",)), Place("learner", run=("learn",)))
ACT, LEARN = ("env", "act"), ("learn",)
LOOP = (*ACT, *LEARN)


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
        (Place("a", ("env", "act"), replicas=8), Place("b", ("learn",))),
        (Place("a", ("env",), replicas=4), Place("b", ("act",), replicas=2), Place("c", ["learn"])),
        (Place("a", ("env", "act"), on=("cpu:0", "cpu:1"), replicas=2), Place("b", ("learn",))),
        (Place("a", ("env", "act"), replicas=2), Place("b", ("learn",), replicas=4)),
        (Place("a", ("env", "act")), Place("b", ("learn",), on=("cpu:0", "cpu:1"), replicas=2)),
        (Place("a", ("env", "act"), on=("cpu:2", "cpu:3")), Place("b", ("learn",))),
    ],
)  # fmt: skip
def test_every_kind_of_place(places: tuple[Place, ...]) -> None:
    expected, rows = run((Place("all", run=LOOP),))
    state, others = run(places)
    assert difference(state, expected) < 1e-5
    for name in rows:
        np.testing.assert_allclose(others[name], rows[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("num_envs", "length", "places"),
    [
        (6, 3, (Place("a", ACT, replicas=2), Place("b", LEARN, on=("cpu:0", "cpu:1")))),
        (8, 3, (Place("a", ACT, replicas=8), Place("b", LEARN, on=("cpu:0", "cpu:1")))),
        (8, 5, (Place("a", ACT, replicas=4), Place("b", LEARN, ("cpu:0", "cpu:1"), replicas=2))),
    ],
)
def test_parts_smaller_than_what_holds_them(
    num_envs: int, length: int, places: tuple[Place, ...]
) -> None:
    """The parts that several instances send are joined before devices share the whole."""
    graph = trace(Toy(length=length), num_envs, exact=True)
    ends = []
    for executor in (Fused(Plan(graph, (Place("all", run=LOOP),))), Split(Plan(graph, places))):
        executor.start(jax.random.key(0))
        advance(executor, 2)
        ends.append(executor.state())
    assert difference(ends[1], ends[0]) < 1e-5


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


class Shared(Toy):
    """A state that is sent, reported and carried, and that no place waits for."""

    @fragment(role="learn")
    def count(self, key: Any) -> Any:
        return jax.random.split(key)[0]

    def step(self, state: ToyState) -> Any:
        key = self.count(state.key)
        x = state.x + self.act(jax.random.normal(key, (4,)), state.x)[:, None]
        x = self.env(x, x[:, 0], state.keys)
        return state._replace(x=x, key=key), {"key": jax.random.key_data(key), "one": jnp.arange(8)}


class NoParameters(Toy):
    """A loop in which a place has no state, constant or sequence of its own."""

    @fragment
    def act(self, w: Any, x: Any) -> Any:
        return jnp.tanh(x[:, 0])


class PassesOn(Toy):
    """A loop that stacks its inputs, and constants."""

    def step(self, state: ToyState) -> Any:
        def one(x: Any, t: Any) -> Any:
            x = self.env(x, self.act(state.w, x), state.keys)
            return x, (x, t, state.w, jnp.full((2,), 0.5))

        x, (xs, ts, ws, halves) = jax.lax.scan(one, state.x, jnp.sin(jnp.arange(3.0)) * state.w[0])
        w, key, loss = self.update(state.w, state.key, xs * ts[:, None, None])
        metrics = {"loss": loss + halves.sum(), "ws": ws.sum(), "ts": ts}
        return state._replace(x=x, w=w + 0.01 * ws.sum(0), key=key), metrics


class Nested(Toy):
    """Several rollouts and updates in one iteration: a crossing loop inside another."""

    def step(self, state: ToyState) -> Any:
        def one(state: ToyState, _: None) -> Any:
            return Toy.step(self, state)

        state, metrics = jax.lax.scan(one, state, None, 2)
        return state, {"loss": metrics["loss"][-1]}


@pytest.mark.parametrize("places", [SPLIT, APART], ids=["split", "apart"])
@pytest.mark.parametrize("algorithm", [Shared(), NoParameters(), PassesOn(), Nested()])
def test_every_kind_of_flow(algorithm: Toy, places: tuple[Place, ...]) -> None:
    graph = trace(algorithm, 8, exact=True)
    names = [label.name for label in graph.labels]
    one, many = Fused(Plan(graph, (Place("all", run=names),))), Split(Plan(graph, places))
    ends = []
    for executor in (one, many):
        executor.start(jax.random.key(0))
        ends.append((advance(executor, 6), executor.state()))
    assert difference(ends[1], ends[0]) == 0.0


def test_services_are_closed_whatever_the_instances_do(monkeypatch: pytest.MonkeyPatch) -> None:
    executor, closed = Split(Plan(trace(Toy(), 8), SPLIT)), []
    executor.start(jax.random.key(0))
    end = executor.crew.close

    def fail() -> None:
        end()
        raise OSError("it would not end")

    monkeypatch.setattr(executor.crew, "close", fail)
    monkeypatch.setattr(executor._services, "close", lambda: closed.append(True))
    with pytest.raises(OSError, match="it would not end"):
        executor.close()
    assert closed == [True]


def test_a_run_that_failed_stays_failed() -> None:
    executor = Split(Plan(trace(Failing(), 8), SPLIT))
    executor.start(jax.random.key(0))
    for _ in range(2):
        with pytest.raises(InstanceError, match="on fire"):
            executor.run(1)
