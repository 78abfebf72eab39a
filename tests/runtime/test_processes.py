"""Processes compute what threads compute, share one clock, and end when the run does."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from typing import Any

import jax
import pytest

import hocket
from hocket import Channel, Place, Plan, fragment
from hocket.runtime.distributed import Split
from hocket.testing import difference
from tests.faults import all_gone, is_gone, left_behind, two, workers
from tests.toys import Toy

# Several places, replicas and devices; keys cross from the first place to the second.
PLACES = (
    Place("env", ("env",), replicas=2),
    Place("act", ("act",)),
    Place("learner", ("learn",), on=("cpu:0", "cpu:1")),
)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = left_behind()
    yield
    assert left_behind() <= before


def test_processes_compute_what_threads_compute() -> None:
    """The algorithm is defined here, so that no other process can import it."""

    class Noisy(Toy):
        @fragment(role="act")
        def choose(self, w: Any, x: Any, keys: Any) -> Any:
            noise = jax.vmap(lambda key: jax.random.normal(key))(keys)
            return x @ w + 0.1 * noise

        @fragment(role="env")
        def draw(self, keys: Any) -> Any:
            both = jax.vmap(jax.random.split)(keys)
            return both[:, 0], both[:, 1]

        def step(self, state: Any) -> Any:
            def one(carry: Any, _: None) -> Any:
                x, keys = carry
                keys, used = self.draw(keys)
                return (self.env(x, self.choose(state.w, x, used), used), keys), x

            (x, keys), xs = jax.lax.scan(one, (state.x, state.keys), None, self.length)
            w, key, loss = self.update(state.w, state.key, xs)
            return state._replace(x=x, keys=keys, w=w, key=key), {"loss": loss, "x": x.sum(-1)}

    def places(graph: Any, cluster: Any) -> Plan:
        return Plan(graph, PLACES, {"env -> act": Channel(capacity=2)})

    begin = time.perf_counter()
    one = hocket.run(Noisy(), iterations=20, distribute=places, exact=True)
    many = hocket.run(
        Noisy(), iterations=20, distribute=places, exact=True, launch="processes", record=True
    )  # fmt: skip
    assert difference((one.state, one.metrics), (many.state, many.metrics)) == 0.0
    values = one.plan.graph.values
    crossing = [values[v].dtype for t in one.plan.projection.transfers for v in t.values]
    assert any(jax.numpy.issubdtype(dtype, jax.dtypes.prng_key) for dtype in crossing)

    timeline = many.timeline
    assert timeline is not None
    assert timeline.instances == ("env/0", "env/1", "act/0", "learner/0")
    times = [t for span in timeline.spans for t in (span.start, span.end)]
    assert begin < min(times) and max(times) < time.perf_counter()
    # No message arrives before it was sent: all instances look at one clock.
    sent = {s.name: s.start for s in reversed(timeline.spans) if s.kind == "send"}
    received = {s.name: s.end for s in reversed(timeline.spans) if s.kind == "receive"}
    assert sent.keys() == received.keys() and len(sent) >= 8
    assert all(sent[name] < received[name] for name in sent)


def test_leaving_the_loop_ends_the_workers() -> None:
    reports = hocket.iterate(Toy(), distribute=two, launch="processes")
    report, pids = next(reports), workers()
    state = report.state
    assert sorted(pids) == ["actor/0", "learner/0"] and not any(map(is_gone, pids.values()))
    assert isinstance(report.executor, Split)
    crossed = report.executor.nbytes()
    reports.close()  # pyright: ignore[reportAttributeAccessIssue]
    assert all_gone(pids)
    for _ in range(2):
        report.executor.close()
        assert difference(report.state, state) == 0.0
        assert report.executor.nbytes() == crossed
    with pytest.raises(RuntimeError, match="this run has ended"):
        report.executor.run(1)


def test_forgetting_the_executor_ends_the_workers() -> None:
    executor = Split(hocket.plan(Toy(), distribute=two, launch="processes"))
    executor.start(jax.random.key(0))
    pids = workers()
    assert len(pids) == 2 and not any(map(is_gone, pids.values()))
    del executor
    gc.collect()
    assert all_gone(pids)
