"""Sebulba: threads step environments on the host and act on some devices; the others learn.

    thread 0: [ env | act ] --trajectories-->
    thread 1: [ env | act ] --trajectories-->  learner: [ learn replay ]
       ^------------ parameters, at the next unroll ----+

While the environments of one thread step, the actions of another are computed and the learner
learns. Hessel et al. 2021, "Podracer architectures for scalable Reinforcement Learning":
https://arxiv.org/abs/2104.06272
"""

from __future__ import annotations

from hocket.cluster import Cluster, Device
from hocket.core.graph.trace import Graph
from hocket.core.plan.data import Place, Plan
from hocket.core.plan.device_id import DeviceId
from hocket.errors import PlanError
from hocket.strategies.sharing import apart, over_nodes, sampling, share_out
from hocket.strategies.strategy import Lag, strategy
from hocket.system.platforms import HOST


@strategy
def sebulba(
    graph: Graph, cluster: Cluster, *, actors: int | None = None, threads: int = 2,
    batch: int | None = None, learners: int = 1, lag: Lag = 1, max_age: int | None = None,
    acting: str | None = None, backend: str = "jax",
) -> Plan:  # fmt: skip
    """Threads step environments and act on `actors` devices; the last `learners` devices learn.

    Each of the `actors` devices has `threads` threads; by default all other devices act, as far as
    the environments can be shared among their threads. Instead of `threads`, `batch` can be given:
    the number of environments of each thread. A run with `lag=1` is deterministic. With `lag=free`
    actors and learner do not wait for each other, so the numbers depend on timing. With
    `acting=cpu` actions are computed on the CPU, while an accelerator learns.
    """
    others, learning = apart(cluster, learners)
    if acting not in (None, HOST):
        raise PlanError(
            f"acting={acting!r} is unknown: leave it out to act on the actor devices, or use "
            f"acting={HOST} to act on the host."
        )
    if acting == HOST:
        nodes = [node.name for node in cluster.nodes] or [""]
        others = tuple(Device(DeviceId(HOST, 0, node), HOST) for node in nodes)
    if actors is not None and not 1 <= actors <= len(others):
        raise PlanError(
            f"actors={actors} must be from 1 to {len(others)}, the number of devices that can act: "
            f"there are {cluster}."
        )
    if batch is not None and (batch < 1 or graph.num_envs % batch):
        raise PlanError(
            f"batch={batch} does not divide the {graph.num_envs} environments: use a divisor."
        )
    # On several nodes each replica gets a device of its own choice, so any number of devices fits.
    any_fits = batch is not None and bool(cluster.nodes)
    fitting = [
        n for n in range(1, len(others) + 1)
        if any_fits or graph.num_envs % (n * (batch or threads)) == 0
    ]  # fmt: skip
    count = actors or max(fitting, default=1)
    replicas = graph.num_envs // batch if batch else threads * count
    chosen = others[:count]
    if cluster.nodes and count < len(others):  # of each node some, rather than all of the first
        chosen = list(dict.fromkeys(over_nodes(cluster, others, count, learning)))
    on = share_out(cluster, chosen, replicas, graph.num_envs, learning)
    return Plan(
        graph,
        (
            Place("actor", ("env", "act"), on=on, replicas=replicas, backend=backend),
            Place("learner", ("learn", "gradient", "replay"), on=learning),
        ),
        **sampling("actor", "learner", lag, max_age, replicas),
    )
