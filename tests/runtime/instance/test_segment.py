"""A segment: neighbouring nodes as one compiled function, shared by the replicas of a place."""

from __future__ import annotations

import threading
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hocket.core.graph.trace import Graph, ValueId
from hocket.core.projection.instructions import Compute
from hocket.runtime.instance.segment import Segment, Segments, arguments
from tests.core.tiny import State, act, env, learn, titled, traced


def run(s: State) -> tuple[State, State]:
    action = act(s["x"])
    x = env(s["x"], action)
    return {"w": learn(s["w"], x), "x": x}, {"same": s["x"]}


GRAPH: Graph = traced(run, "w x")


def step_of(*titles: str, **options: Any) -> Compute:
    """Return the segment of these fragments, with all that they read and make."""
    nodes = [titled(GRAPH.block.nodes, title) for title in titles]
    outs = [v for n in nodes for v in n.outs]
    ins = [v for n in nodes for v in n.ins if v not in outs and v not in GRAPH.constants]
    both = {"ins": tuple(dict.fromkeys(ins)), "outs": tuple(outs)}
    return Compute(tuple(n.id for n in nodes), **{**both, **options})


def test_what_it_may_overwrite_comes_first() -> None:
    a, b, c = map(ValueId, (4, 7, 2))
    assert arguments(Compute((), (a, b, c), (), donate=(c,))) == [c, a, b]
    assert arguments(Compute((), (a, b), ())) == [a, b]


def test_its_nodes_run_one_after_another() -> None:
    step = step_of("act", "env")
    segment = Segment(GRAPH, step, {})
    assert segment.name == "act, env" and segment.arguments == list(step.ins)
    x = jnp.arange(4.0)
    action, moved = segment([x], (jax.local_devices()[0],))
    np.testing.assert_allclose(action, np.tanh(x), rtol=1e-6)
    np.testing.assert_allclose(moved, x + np.tanh(x), rtol=1e-6)


def test_nodes_without_a_fragment_are_glue() -> None:
    assert Segment(GRAPH, Compute(()), {}).name == "glue"


def test_an_argument_that_is_also_a_result_is_copied() -> None:
    """Otherwise both would share a buffer, which whoever donates it takes from the other."""
    step = step_of("act")
    (x,), (action,) = step.ins, step.outs
    both = Compute(step.nodes, (x,), (x, action))
    given = jnp.arange(4.0)
    (same, _) = Segment(GRAPH, both, {})([given], (given.device,))
    np.testing.assert_array_equal(same, given)
    assert same.unsafe_buffer_pointer() != given.unsafe_buffer_pointer()


def test_an_argument_that_it_may_overwrite_is_gone() -> None:
    step = step_of("act")
    donating = Compute(step.nodes, step.ins, step.outs, donate=step.ins)
    for made, is_gone in ((step, False), (donating, True)):
        given = jnp.arange(4.0)
        jax.block_until_ready(Segment(GRAPH, made, {})([given], (given.device,)))
        assert given.is_deleted() == is_gone


def test_a_segment_may_be_mapped_over_rows() -> None:
    step = step_of("act")
    rows = jnp.arange(12.0).reshape(3, 4)
    (actions,) = Segment(GRAPH, step, {}, jax.vmap)([rows], (rows.device,))
    np.testing.assert_allclose(actions, np.tanh(rows), rtol=1e-6)


def together(work: Any, count: int = 4) -> None:
    threads = [threading.Thread(target=work, args=(k,)) for k in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_replicas_make_a_segment_once() -> None:
    segments, step, made = Segments(), step_of("act"), []

    def make() -> Segment:
        time.sleep(0.01)  # while the others ask too
        made.append(Segment(GRAPH, step, {}))
        return made[-1]

    shared: list[Any] = []
    together(lambda _: shared.append(segments.get(step, 1, make)))
    assert len(made) == 1 and all(segment is made[0] for segment in shared)
    assert segments.get(step, 2, make) is not made[0]  # a part has fewer environments
    assert [key for key, _ in segments.all()] == [(step, 1), (step, 2)]


def test_while_one_compiles_the_others_wait_and_then_all_run_at_once() -> None:
    segment, devices = Segment(GRAPH, step_of("act"), {}), (jax.local_devices()[0],)
    log: list[Any] = []

    def compiling(number: int) -> list[int]:
        log.append(number)
        if log[0] == number:
            time.sleep(0.01)
            log.append("compiled")
        return [number]

    segment.fn = compiling
    together(lambda k: segment([k], devices))
    assert log[1] == "compiled" and sorted(log[:1] + log[2:]) == [0, 1, 2, 3]
    all_in = threading.Barrier(4)
    segment.fn = lambda number: [all_in.wait(60)]  # each waits for all of them
    waited: list[Any] = []
    together(lambda k: waited.extend(segment([k], devices)))
    assert sorted(waited) == [0, 1, 2, 3]
