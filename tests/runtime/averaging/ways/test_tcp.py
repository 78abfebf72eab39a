"""Means over TCP connections: the bits of `shm`, calls in any order, and waits that end.

This file is also the program of processes that the tests start.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hocket import Place, Plan, trace
from hocket.core.plan.device_id import DeviceId, device_ids
from hocket.errors import PlanError
from hocket.runtime.averaging import Joined, Members, Space, Unavailable
from hocket.runtime.averaging.known import choices
from hocket.runtime.averaging.ways import tcp
from hocket.runtime.averaging.ways.shm import OnHost
from hocket.runtime.averaging.ways.tcp import AVERAGE, Connected
from hocket.runtime.executor import Executor
from hocket.runtime.launch import cluster_named
from hocket.strategies import resolve
from hocket.system.network import get_network, set_network
from hocket.system.network.refusals import REFUSALS
from hocket.system.shared_memory import MemoryFile
from hocket.testing import SMALL, difference
from hocket.testing.same_numbers import carried_out, names_of
from hocket.training.loop import make_executor

ENDED = "another replica has ended"
THREADS = "32"
"""The threads of XLA in the process of many replicas. Each loop with a mean in it takes one."""
TURNS = 8


def members(count: int, delay: float = 0.0) -> Members:
    return Members(device_ids(["cpu:0"] * count), shares_memory=False, delay=delay)


def each(count: int, call: Callable[[int], Any]) -> list[Any]:
    """Call a function in a thread for each replica. Return the results."""
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(call, range(count)))


@contextlib.contextmanager
def connected(count: int, delay: float = 0.0) -> Iterator[list[Connected]]:
    """Connect replicas that are all in this process."""
    listeners = [AVERAGE.listen(members(count, delay), i, [], None) for i in range(count)]
    addresses = pickle.loads(pickle.dumps([listener.address for listener in listeners]))
    groups = each(count, lambda i: listeners[i].join(addresses, 3))
    try:
        yield groups
    finally:
        for group in groups:
            group.free()


def sites(index: int) -> list[list[jax.Array]]:
    """Return the arrays that a replica averages, a list for each call site."""
    random = np.random.default_rng(index)
    # The first is small, so each replica computes all of it. The others are cut into chunks.
    shapes = {
        "float32": [(), (3, 7), (0,)], "bfloat16": [(9,)], "float16": [(1,)], "complex64": [(5,)],
    }  # fmt: skip
    small = [random.normal(size=s).astype(d) for d, every in shapes.items() for s in every]
    wide = [random.normal(size=n) for n in (20_001, 0, 3, 40_000)]
    mixed = [jnp.asarray(x, jnp.float64 if i % 2 else jnp.float32) for i, x in enumerate(wide)]
    return [
        [jnp.asarray(x) for x in small],
        [jnp.asarray(random.normal(size=57_289), jnp.float32)],
        mixed,
        [jnp.zeros(0)],
    ]


def program(group: Joined) -> Callable[[Any], Any]:
    """Average all sites once, which XLA may do in any order, and then two sites in a loop."""

    def turn(x: jax.Array, _: None) -> Any:
        return group(0.5 * x + 1)[0], group(x[0])[0]

    def run(xs: Any) -> Any:
        return [group(*x) for x in xs], jax.lax.scan(turn, xs[1][0][:1000], None, TURNS)

    return jax.jit(run)


def means(groups: Sequence[Joined]) -> list[list[np.ndarray]]:
    """Run the program twice in each replica, and return the means."""

    def run(i: int) -> list[np.ndarray]:
        with jax.enable_x64(True):  # for this thread
            compiled = program(groups[i])
            runs = [jax.tree.leaves(jax.device_get(compiled(sites(i)))) for _ in range(2)]
        return [np.asarray(x) for x in runs[1]]

    return each(len(groups), run)


def compare_with_shared_memory(count: int) -> None:
    """Compare the means of both ways, between replicas that are all in this process."""
    space = Space(MemoryFile.create(1 << 26), 0, 1 << 26)
    by_memory = means([OnHost(space, count, i) for i in range(count)])
    with connected(count) as groups:
        by_tcp = means(groups)
        calls, sent, waited = groups[0].counts()
    for one in (*by_memory, *by_tcp):
        for x, y in zip(one, by_memory[0], strict=True):
            assert x.dtype == y.dtype and x.tobytes() == y.tobytes()
    assert {str(x.dtype) for x in by_tcp[0]} >= {"float32", "float64", "bfloat16", "complex64"}
    assert calls == 2 * (len(sites(0)) + 2 * TURNS) and waited > 0
    assert sent > 2 * 4 * 57_289


@pytest.mark.parametrize("count", range(2, 9))
def test_the_bits_are_those_of_shared_memory(count: int) -> None:
    environment = {**os.environ, "PJRT_NPROC": THREADS}
    command = [sys.executable, __file__, "compare_with_shared_memory", str(count)]
    subprocess.run(command, env=environment, check=True, timeout=120)


def begun(group: Joined, calls: int) -> None:
    """Wait until a replica has begun so many calls."""
    deadline = time.monotonic() + 60
    while group.counts()[0] < calls and time.monotonic() < deadline:
        time.sleep(0.001)
    assert group.counts()[0] == calls


@pytest.mark.parametrize("size", [10, 200_000])
def test_two_sites_are_called_in_another_order_by_each_replica(size: int) -> None:
    """Arrays arrive for a program that their receiver has not even compiled."""
    order = [(0, 1, 2), (2, 0, 1), (1, 2, 0)]
    with connected(3) as groups, ThreadPoolExecutor(9) as pool:
        results: list[dict[int, Any]] = []
        for i, group in enumerate(groups):
            programs = [
                jax.jit(group).lower(jnp.ones(size + k)).compile() for k in range(3)
            ]  # fmt: skip
            running = {}
            for calls, k in enumerate(order[i], 1):
                running[k] = pool.submit(programs[k], jnp.full(size + k, 10.0 * k + i))
                if i < 2:  # the last replica completes the calls of all
                    begun(group, calls)
            results.append(running)
        for running in results:
            for k, future in running.items():
                (mean,) = future.result(60)
                np.testing.assert_array_equal(mean, np.full(size + k, 10.0 * k + 1, np.float32))


def test_replicas_that_send_much_at_once_do_not_block_each_other() -> None:
    """Each replica has more to send than sockets hold, before it receives anything."""
    with connected(3) as groups:
        xs = [np.random.default_rng(i).normal(size=5_000_000).astype(np.float32) for i in range(3)]
        for _ in range(2):
            results = each(3, lambda i: np.asarray(jax.jit(groups[i])(xs[i])[0]))
            expected = (xs[0] + xs[1] + xs[2]) / np.float32(3)
            for mean in results:
                np.testing.assert_array_equal(mean, expected)


def test_a_mean_takes_as_much_longer_as_it_is_told() -> None:
    with connected(2, delay=0.1) as groups:
        start = time.monotonic()
        each(2, lambda i: jax.block_until_ready(jax.jit(groups[i])(jnp.ones(3))))
        assert time.monotonic() - start >= 0.1
        assert all(group.counts()[2] >= 1e8 for group in groups)


def error_of(call: Callable[[], Any]) -> str:
    try:
        jax.block_until_ready(call())
    except Exception as error:  # noqa: BLE001
        return str(error)
    return ""


@pytest.mark.parametrize("size", [10, 200_000])
def test_other_sizes_are_an_error_that_says_so(size: int) -> None:
    with connected(3) as groups:
        errors = each(
            3, lambda i: error_of(lambda: jax.jit(groups[i])(jnp.ones(size + 2 * (i == 1))))
        )
        for i, error in enumerate(errors):
            assert "the replicas run different programs" in error and f"replica {i} has" in error


def test_two_runs_of_one_program_do_not_mix() -> None:
    with connected(2) as groups, ThreadPoolExecutor(1) as pool:
        run = jax.jit(groups[0]).lower(jnp.ones(10)).compile()
        first = pool.submit(error_of, lambda: run(jnp.ones(10)))
        begun(groups[0], 1)
        assert "two runs of one program met" in error_of(lambda: run(jnp.ones(10)))
        groups[1].close()
        assert ENDED in first.result(60)


@pytest.mark.parametrize("who", [0, 1, 2])
@pytest.mark.parametrize("size", [10, 3_000_000])
def test_a_replica_that_closes_ends_all_waits(who: int, size: int) -> None:
    with connected(3) as groups, ThreadPoolExecutor(2) as pool:
        waiting = [
            pool.submit(error_of, lambda i=i: jax.jit(groups[i])(jnp.ones(size))) for i in (0, 1)
        ]
        for i in (0, 1):
            begun(groups[i], 1)
        groups[who].close()
        assert all(ENDED in future.result(60) for future in waiting)
        error_of(lambda: jax.jit(groups[2])(jnp.ones(size)))  # it may have the arrays for this
        for group in groups:  # later waits end, too
            assert ENDED in error_of(lambda group=group: jax.jit(group)(jnp.ones(size)))


def test_a_replica_may_end_when_it_has_its_last_mean() -> None:
    """Its means reach the others, though it has closed its connections."""
    with connected(4) as groups:

        def once(i: int) -> np.ndarray:
            (mean,) = jax.jit(groups[i])(jnp.full(300_000, float(i)))
            result = np.asarray(mean)
            groups[i].free()
            return result

        for mean in each(4, once):
            np.testing.assert_array_equal(mean, np.full(300_000, 1.5, np.float32))


def join_and_stay() -> None:
    """Join as replica 1 of 2, and then do nothing."""
    read, write = sys.stdin.buffer, sys.stdout.buffer
    set_network(pickle.load(read))
    listener = AVERAGE.listen(members(2), 1, [], None)
    write.write(pickle.dumps(listener.address))
    write.flush()
    joined = listener.join(pickle.load(read), 0)
    write.write(b"joined\n")
    write.flush()
    threading.Event().wait(120)
    joined.close()


@pytest.mark.parametrize("size", [10, 8_000_000])
def test_a_replica_that_is_killed_ends_the_waits_for_it(size: int) -> None:
    """It is killed while the other sends it more than sockets hold."""
    command = [sys.executable, __file__, "join_and_stay"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin and process.stdout
        listener = AVERAGE.listen(members(2), 0, [], None)
        pickle.dump(get_network(), process.stdin)
        process.stdin.flush()
        addresses = [listener.address, pickle.load(process.stdout)]
        pickle.dump(addresses, process.stdin)
        process.stdin.flush()
        group = listener.join(addresses, 0)
        assert process.stdout.readline() == b"joined\n"
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(error_of, lambda: jax.jit(group)(jnp.ones(size)))
            begun(group, 1)
            process.kill()
            assert ENDED in waiting.result(60)


def test_a_replica_of_another_epoch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "SECONDS", 1.0)
    before = REFUSALS.by_reason.get("unexpected", 0)
    listeners = [AVERAGE.listen(members(2), i, [], None) for i in range(2)]
    addresses = [listener.address for listener in listeners]

    def join(i: int) -> str:
        with pytest.raises(Unavailable) as raised:
            listeners[i].join(addresses, i)
        return str(raised.value)

    late, refused = each(2, join)
    assert late == "waited 1 s for a connection of replica 1"
    assert refused.startswith("no connection to replica 0: the other side ended the greeting")
    assert REFUSALS.by_reason["unexpected"] == before + 1


def test_it_averages_where_no_memory_is_shared() -> None:
    apart = members(2)
    assert choices(apart) == choices(apart, is_exact=True) == ["tcp"]
    near = replace(apart, shares_memory=True)
    assert choices(near) == ["shm"] and choices(near, "tcp") == ["tcp"]
    assert AVERAGE.room(apart, [[jnp.ones(10)]]) == 0
    assert AVERAGE.why_not(Members((None, None))) == ""


def test_it_refuses_what_is_no_cpu() -> None:
    with pytest.raises(PlanError, match="cannot use `tcp` here: it averages arrays of CPUs"):
        choices(Members((DeviceId("gpu", 0), DeviceId("cpu", 0))), "tcp")


def test_replicas_on_two_nodes_have_the_numbers_of_one_program() -> None:
    """PPO averages at many call sites of one program, among them one in a loop."""
    graph = trace(SMALL["ppo"](), 8)
    plan = resolve("data_parallel:replicas=2")(graph, cluster_named("loopback:2"))
    made: list[Executor] = []

    def executor(plan: Plan) -> Executor:
        made.append(make_executor(plan, 2))
        return made[0]

    first, there = carried_out(plan, 0, 2, executor)
    fused = carried_out(Plan(graph, (Place("all", run=names_of(graph)),)), 0, 2)[1]
    assert difference(first, fused) > 0.01 and difference(there, fused) < 1e-5
    table = made[0].reductions()["replica"]
    assert table.chosen == "tcp" and "not measured: the only way here" in str(table)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[4]))
    globals()[sys.argv[1]](*map(int, sys.argv[2:]))
