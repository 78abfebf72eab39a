"""Measure clusters of Ray: how soon a run starts, and how fast it is beside local processes.

    ray start --head --num-cpus 2 && ray start --address 127.0.0.1:6379 --num-cpus 2
    python benchmarks/cluster_start.py                       # in a Ray cluster that runs already
    python benchmarks/cluster_start.py --cluster loopback:2  # the same on another kind of cluster
    python benchmarks/cluster_start.py --own                 # on two Ray nodes that it starts

start: from the call until the first report of a run of four instances: the connection to Ray, the
survey, the plan, and the start of four processes. `second` is that of another run in the same
process. Programs are in JAX's cache on disk, from a run before these. speed: the time of an
iteration of some 50 ms, against processes of this machine and `loopback:2`, in turns in one run;
`ratio` compares the quieter halves. With nodes that are all one machine, this says what a cluster
costs without a network. Prints one JSON line per figure.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOUR = "actor_learner:actors=3"
TWO = "actor_learner:actors=2"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cluster", default="ray")
    parser.add_argument("--own", action="store_true", help="start two Ray nodes, and end them")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with own_cluster() if options.own else contextlib.nullcontext():
        start(options.cluster)
        speed(options.cluster, options.rounds)


@contextlib.contextmanager
def own_cluster() -> Iterator[None]:
    """Start the cluster of the tests, where only this process and its children can reach it."""
    sys.path.insert(0, str(ROOT))
    from tests.ray_cluster import RayCluster, own_network

    cache = tempfile.gettempdir() + "/hocket-cluster-start"
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", cache)
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    with own_network(), tempfile.TemporaryDirectory(prefix="hk-ray-", dir="/tmp") as folder:
        cluster = RayCluster(Path(folder))
        try:
            for _ in range(2):
                cluster.add(cpus=max(1, (os.cpu_count() or 2) // 2))
            os.environ.update(cluster.env)
            yield
        finally:
            cluster.stop()


def ppo(envs: int, **fields: Any) -> Any:
    from hocket import make
    from hocket.algorithms import PPO

    return PPO(env=make("CartPole-v1"), num_envs=envs, **fields)


def small() -> Any:
    return ppo(12, length=16, hidden=(8,), minibatches=2)


def start(cluster: str) -> None:
    """Tell the seconds until the first report of two runs, one after the other."""
    import hocket

    next(hocket.iterate(small(), distribute=FOUR, launch="processes", iterations=1))
    for which in ("first", "second"):
        began = time.perf_counter()
        reports = hocket.iterate(small(), distribute=FOUR, cluster=cluster, iterations=10**6)
        next(reports)
        seconds = time.perf_counter() - began
        reports.close()  # pyright: ignore
        tell(f"start of a run of four instances, {which}", seconds, "s", cluster=cluster)


def speed(cluster: str, rounds: int) -> None:
    """Tell the time of an iteration on the cluster and as processes of this machine."""
    seconds: dict[str, list[float]] = {}
    parties: dict[str, dict[str, Any]] = {
        "processes": {"launch": "processes"}, "loopback:2": {"cluster": "loopback:2"},
        cluster: {"cluster": cluster},
    }  # fmt: skip
    for _ in range(rounds):
        for name, where in parties.items():
            seconds.setdefault(name, []).append(iteration_seconds(**where))
    quiet = {
        name: statistics.mean(sorted(times)[: (len(times) + 1) // 2])
        for name, times in seconds.items()
    }
    tell(
        "an iteration on a cluster beside local processes", quiet[cluster] * 1e3, "ms",
        cluster=cluster, processes=quiet["processes"] * 1e3, loopback=quiet["loopback:2"] * 1e3,
        ratio=quiet[cluster] / quiet["processes"], rounds=rounds,
        all={name: [round(x * 1e3, 2) for x in times] for name, times in seconds.items()},
    )  # fmt: skip


def iteration_seconds(**where: Any) -> float:
    """Return the seconds of an iteration, over some seconds after the first reports."""
    import hocket

    large = ppo(256, length=64, hidden=(64, 64), minibatches=4, epochs=2)
    reports = hocket.iterate(large, distribute=TWO, iterations=10**6, **where)
    for _ in range(3):
        first = next(reports)
    began = time.perf_counter()
    last = first
    while time.perf_counter() - began < 4.0:
        last = next(reports)
    seconds = time.perf_counter() - began
    reports.close()  # pyright: ignore
    return seconds / (last.iteration - first.iteration)


def tell(name: str, value: float, unit: str, **more: object) -> None:
    import jax

    hardware = f"{os.cpu_count()} x {platform.processor() or platform.machine()}"
    line = {"name": name, "value": value, "unit": unit, **more, "hardware": hardware}
    print(json.dumps({**line, "jax": jax.__version__}), flush=True)


if __name__ == "__main__":
    main()
