"""Measure a cluster: its network, starts of runs, and training under every strategy.

    python benchmarks/cluster.py loopback:2
    python benchmarks/cluster.py hosts:hosts.toml > cluster.json      # on real machines

Nothing but this command is needed on real machines, and its output is all that is interesting: it
prints one JSON line per figure.

network: the round trip and the rate between all pairs of nodes, as `hocket devices --check` does.
start: from the call of `hocket.run` to the end of one iteration, with one actor on each node, or as
many as `--instances` says; the first start and the second, when programs are cached and code is on
the nodes.
training: PPO and IMPALA under each strategy that runs on nodes, beside the same strategy in
processes of this machine (`ratio`), and how far the state is from that of the fused program after
three iterations. Both run for `--seconds`, one after the other.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import time
from typing import Any

import jax

import hocket
from hocket.algorithms import IMPALA, PPO
from hocket.cluster import Cluster
from hocket.cluster.devices import processor
from hocket.runtime.launch import cluster_launcher, cluster_named
from hocket.runtime.launch.survey.ways import measure
from hocket.testing import check_strategy

STRATEGIES = (
    "actor_learner:actors={n}",
    "central_inference:envs={n}",
    "data_parallel:replicas={n}",
)
LATE = "actor_learner:actors={n},lag=1"
PROBE_SECONDS = 60.0


def say(name: str, value: float, unit: str, **more: Any) -> None:
    line = {"name": name, "value": round(value, 6), "unit": unit, **more}
    print(json.dumps({**line, "jax": jax.__version__}), flush=True)


def about(name: str, cluster: Cluster) -> None:
    for node in cluster.nodes:
        devices = [d.kind for d in cluster.devices if d.id.node == node.name]
        say(f"{node.name}: cores", node.cores, "", memory=node.memory, devices=devices)
    say("nodes", len(cluster.nodes), "", cluster=name, driver=f"{platform.node()}, {processor()}")


def network(name: str, cluster: Cluster) -> None:
    measured = measure(cluster_launcher(name), [n.name for n in cluster.nodes], PROBE_SECONDS)
    for rate in measured.rates:
        way = f"{rate.source} -> {rate.target}"
        say(f"{way}: round trip", rate.round_trip, "s")
        say(f"{way}: rate", rate.rate, "bytes/s")
    for problem in measured.problems:
        say(problem, 0.0, "problem")


def start(name: str, instances: int) -> None:
    """Measure how long a run needs to start, and how much memory this process then has."""
    small = PPO(
        env=hocket.make("CartPole-v1"), num_envs=instances, length=4, minibatches=1, epochs=1
    )
    for which in ("first", "second"):
        begin = time.perf_counter()
        hocket.run(
            small, iterations=1, cluster=name, distribute=f"actor_learner:actors={instances}"
        )
        say(
            f"start and end of {instances} actors and a learner, {which} run",
            time.perf_counter() - begin, "s",
            peak_of_driver=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        )  # fmt: skip


def training(name: str, nodes: int, seconds: float) -> None:
    for make in (PPO, IMPALA):
        algorithm = make(env=hocket.make("CartPole-v1"), num_envs=16 * nodes)
        for words in (*STRATEGIES, LATE):
            strategy, more = words.format(n=nodes), {}
            if words != LATE:
                check = check_strategy(strategy, {make.__name__: algorithm}, cluster=name,
                                       num_envs=algorithm.num_envs)  # fmt: skip
                more = {"difference from fused": max(check.differences.values())}
            here = speed(algorithm, seconds, distribute=strategy, launch="processes")
            there = speed(algorithm, seconds, distribute=strategy, cluster=name)
            say(
                f"{make.__name__}, {strategy}", there, "env steps/s",
                ratio=round(there / here, 3), against="processes of this machine", **more,
            )  # fmt: skip


def speed(algorithm: Any, seconds: float, **where: Any) -> float:
    """Return the environment steps per second, after the first block, which compiles."""
    report = before = None
    for report in hocket.iterate(algorithm, **where):
        before = before or report
        if report.timings.run > seconds:
            break
    assert report and before
    return (report.env_steps - before.env_steps) / (report.timings.run - before.timings.run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cluster", help="such as loopback:2 or hosts:FILE")
    parser.add_argument("--parts", nargs="+", default=["network", "start", "training"])
    parser.add_argument("--instances", type=int, default=0, help="actors of `start`")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each training")
    given = parser.parse_args()
    cluster = cluster_named(given.cluster)
    about(given.cluster, cluster)
    if "network" in given.parts:
        network(given.cluster, cluster)
    if "start" in given.parts:
        start(given.cluster, given.instances or len(cluster.nodes))
    if "training" in given.parts:
        training(given.cluster, len(cluster.nodes), given.seconds)


if __name__ == "__main__":
    main()
