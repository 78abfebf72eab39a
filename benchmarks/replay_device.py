"""Compare a learner whose replay is on its device with one that a server feeds.

    python benchmarks/replay_device.py
    python benchmarks/replay_device.py --cases atari --rounds 5 --seconds 3

cart: transitions of 44 bytes and a network of 2 x 128. atari: transitions of 28,236 bytes and the
network of DQN's paper. An update draws 256 rows by priority, takes a gradient step, and gives the
rows new priorities.

device: `hocket.replay.device`, with the update in one program on the device. fed: rows are at a
server in a process of its own, over shared memory; a thread draws them into pinned memory and sends
them ahead (`hocket.replay.store.feed`). asked: without a thread, so each update waits for its
batch. learner: one batch that stays on the device. From a server, new priorities go back one update
later. The ways take turns. A value is updates per second, a ratio compares within a round. `busy`
is the share of the time in which some kernel ran, as nvidia-smi counts it; null without nvidia-smi.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from peers_replay import BETA, CASES, fill, random_rows
from replay_service import hocket, served
from split import Meter, tell

from hocket.replay import connect, device
from hocket.replay.store.feed import feed

BATCH = 256
WAYS = ("device", "fed", "asked", "learner")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    for case in options.cases:
        rows = random_rows(case)
        with served(case, CASES[case].capacity) as addresses:
            fill(hocket(rows, addresses["shm"]), rows, CASES[case].capacity)
            ways = {
                "device": on_device(case, rows),
                "fed": fed(case, addresses["shm"]),
                "asked": asked(case, addresses["shm"]),
                "learner": learner(case, rows),
            }
            rounds = [{way: run(options.seconds) for way, run in ways.items()}
                      for _ in range(options.rounds)]  # fmt: skip
        report(case, rounds)


def report(case: str, rounds: list[dict[str, dict[str, Any]]]) -> None:
    for way in WAYS:
        ratios = [by_way[way]["rate"] / by_way["device"]["rate"] for by_way in rounds]
        busy = [by_way[way]["busy"] for by_way in rounds if by_way[way]["busy"] is not None]
        more = {"ratio": round(statistics.median(ratios), 3), "against": "the replay on the device"}
        tell(
            f"{case}: {way}", round(statistics.median(by_way[way]["rate"] for by_way in rounds)),
            "updates/s", **({} if way == "device" else more),
            busy=round(statistics.median(busy), 2) if busy else None,
            cores=round(statistics.median(by_way[way]["cores"] for by_way in rounds), 2),
        )  # fmt: skip


# What is computed


def init(case: str) -> Any:
    """Make the layers of weights: convolutions of (size, stride), then dense layers."""
    sizes = [(4, 128), (128, 128), (128, 6)] if case == "cart" else [(3136, 512), (512, 6)]
    keys = iter(jax.random.split(jax.random.key(0), 8))
    filters = [] if case == "cart" else [(8, 8, 4, 32), (4, 4, 32, 64), (3, 3, 64, 64)]
    return [jax.random.normal(next(keys), size) * 0.05 for size in (*filters, *sizes)]


def values(params: Any, obs: Any) -> Any:
    x = obs.astype(jnp.float32) / 255.0
    strides = iter((4, 2, 1))
    for k, weights in enumerate(params):
        if weights.ndim == 4:
            x = jax.lax.conv_general_dilated(
                x,
                weights,
                (s := next(strides), s),
                "VALID",
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
            )
        else:
            x = x.reshape(x.shape[0], -1) @ weights
        x = jax.nn.relu(x) if k + 1 < len(params) else x
    return x


def update(params: Any, rows: Any, probability: Any) -> tuple[Any, Any]:
    """Take a gradient step; return the parameters and the new priorities."""

    def loss(params: Any) -> tuple[Any, Any]:
        q = jnp.take_along_axis(values(params, rows["obs"]), rows["action"][:, None] % 6, 1)[:, 0]
        best = values(params, rows.get("next_obs", rows["obs"])).max(-1)
        error = rows["reward"] / 255 + 0.99 * jax.lax.stop_gradient(best) - q
        weight = (probability.min() / probability) ** BETA
        return jnp.mean(weight * error**2), error

    gradient, error = jax.grad(loss, has_aux=True)(params)
    params = jax.tree.map(lambda w, g: w - 1e-4 * g, params, gradient)
    return params, (jnp.abs(error) + 1e-3) ** 0.6


# Ways to feed it


def on_device(case: str, rows: Any) -> Callable[[float], dict[str, Any]]:
    capacity = CASES[case].capacity
    replay = device.init({name: jax.ShapeDtypeStruct(x.shape[1:], x.dtype)
                          for name, x in rows.items()}, capacity)  # fmt: skip
    insert = jax.jit(device.insert, donate_argnums=0)
    for _ in range(capacity // BATCH):
        replay = insert(replay, rows, jnp.ones(BATCH, bool))

    @partial(jax.jit, donate_argnums=(0, 1))
    def one(params: Any, replay: Any, key: Any) -> Any:
        key, k = jax.random.split(key)
        keys, batch = device.sample(replay, jax.random.uniform(k, (BATCH,)))
        params, priority = update(params, batch.rows, batch.probability)
        return params, device.reprioritize(replay, keys, priority)[0], key

    state = (init(case), replay, jax.random.key(1))

    def step() -> Any:
        nonlocal state
        state = one(*state)
        return state[2]

    return partial(timed, step)


def fed(case: str, address: str) -> Callable[[float], dict[str, Any]]:
    table, back = connect(address), connect(address)  # each thread has a connection of its own

    def run(seconds: float) -> dict[str, Any]:
        with feed(table, BATCH) as batches:
            return timed(learning(case, lambda: next(batches), back), seconds)

    return run


def asked(case: str, address: str) -> Callable[[float], dict[str, Any]]:
    table = connect(address)
    return lambda seconds: timed(learning(case, lambda: table.sample(BATCH), table), seconds)


def learning(case: str, take: Callable[[], Any], table: Any) -> Callable[[], Any]:
    one = jax.jit(update)
    params, before = init(case), None

    def step() -> Any:
        nonlocal params, before
        batch = take()
        params, priority = one(params, batch.rows, batch.probability)
        if before is not None:
            table.update(before[0], np.asarray(before[1]))
        priority.copy_to_host_async()
        before = np.array(batch.keys), priority
        return priority

    return step


def learner(case: str, rows: Any) -> Callable[[float], dict[str, Any]]:
    one = jax.jit(update)
    params, on = init(case), jax.device_put(rows)
    probability = jnp.full(BATCH, 1.0 / BATCH)

    def step() -> Any:
        nonlocal params
        params, priority = one(params, on, probability)
        return priority

    return partial(timed, step)


def timed(step: Callable[[], Any], seconds: float) -> dict[str, Any]:
    for _ in range(20):
        jax.block_until_ready(step())
    meter = Meter()
    with busy() as shares:
        start, count, last = time.perf_counter(), 0, None
        while time.perf_counter() < start + seconds:
            for _ in range(10):
                last = step()
            count += 10
            if count % 100 == 0:
                jax.block_until_ready(last)  # at most 100 updates are under way
        jax.block_until_ready(last)
        spent = time.perf_counter() - start
    share = statistics.mean(shares) / 100 if shares else None
    return {"rate": count / spent, "busy": share, "cores": meter.cores()[0]}


@contextmanager
def busy() -> Iterator[list[float]]:
    """Collect what nvidia-smi prints ten times a second inside this context, in percent."""
    percents: list[float] = []
    command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits",
               "-lms", "100", "-i", "0"]  # fmt: skip
    process = None
    with suppress(OSError):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield percents
    finally:
        if process is not None:
            process.terminate()
            lines = process.communicate()[0].split()
            percents += [float(x) for x in lines if x.isdigit()][2:]  # two are from before


if __name__ == "__main__":
    main()
