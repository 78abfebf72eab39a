"""Sebulba: threads step environments on the host and act on actor devices, others learn.

    thread 0: [ env | act ] --trajectories-->
    thread 1: [ env | act ] --trajectories-->  learner: [ learn replay ]
       ^------------ parameters, at the next unroll ----+

While one thread's environments step, another's actions are computed, and both while the learner
learns. Hessel et al. 2021, "Podracer architectures for scalable Reinforcement Learning":
https://arxiv.org/abs/2104.06272
"""

from __future__ import annotations

from hocket.cluster import Cluster, Device
from hocket.core.graph.trace import Graph
from hocket.core.plan.data import Place, Plan
from hocket.errors import PlanError
from hocket.strategies.sharing import apart, sampling, share_out
from hocket.strategies.strategy import Lag, strategy


@strategy
def sebulba(
    graph: Graph, cluster: Cluster, *, actors: int | None = None, threads: int = 2,
    batch: int | None = None, learners: int = 1, lag: Lag = 1, max_age: int | None = None,
    acting: str | None = None, backend: str = "jax",
) -> Plan:  # fmt: skip
    """`threads` for each of `actors` devices step and act; the last `learners` devices learn.

    `batch` says how many environments a thread has, instead of `threads`. `lag=1` is deterministic,
    `lag=free` is not, and needs no two instances to wait for each other. `acting=cpu` computes
    actions on the CPU, beside an accelerator that learns.
    """
    others, learning = apart(cluster, learners)
    if acting not in (None, "cpu"):
        raise PlanError(f"acting={acting!r}: actions are computed on actor devices, or on `cpu`.")
    if acting == "cpu":
        others = (Device("cpu:0", "cpu"),)
    if actors is not None and not 1 <= actors <= len(others):
        raise PlanError(
            f"sebulba was asked for {actors} actor devices, of {len(others)} that do not learn: "
            f"there are {cluster}."
        )
    fitting = [
        n for n in range(1, len(others) + 1) if graph.num_envs % (n * (batch or threads)) == 0
    ]
    count = actors or max(fitting, default=1)
    if batch is not None and (batch < 1 or graph.num_envs % batch):
        raise PlanError(f"batches of {batch} do not make up {graph.num_envs} environments.")
    replicas = graph.num_envs // batch if batch else threads * count
    on = share_out(others[:count], replicas, graph.num_envs)
    return Plan(
        graph,
        (
            Place("actor", ("env", "act"), on=on, replicas=replicas, backend=backend),
            Place("learner", ("learn", "gradient", "replay"), on=learning),
        ),
        **sampling("actor", "learner", lag, max_age, replicas),
    )
