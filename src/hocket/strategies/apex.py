"""Ape-X: many actors fill a replay service, and one learner draws from it by priority.

    actor 0: [ env act insert ] --experience-->
    actor 1: [ env act insert ] --experience-->  replay  --batches-->  learner: [ learn ]
    actor 2: [ env act insert ] --experience-->  service <--priorities--
        ^------------ the newest parameters, at the next rollout ------------+

Nobody waits. The learner does one iteration for each rollout of any actor, which keeps the
algorithm's ratio of samples to inserts. With `lag=0` everybody waits and the learner inserts, so
that rows lie in the same order as in one program. Horgan et al. 2018, "Distributed Prioritized
Experience Replay": https://arxiv.org/abs/1803.00933
"""

from __future__ import annotations

from hocket.cluster import Cluster
from hocket.core.graph.served import served, writers
from hocket.core.graph.trace import Graph
from hocket.core.plan.data import Place, Plan
from hocket.core.program.service import Serving
from hocket.strategies.sharing import apart, sampling, share_out
from hocket.strategies.strategy import FREE, Lag, strategy


@strategy
def apex(
    graph: Graph, cluster: Cluster, *, actors: int = 4, learners: int = 1, carrier: str = "near",
    shards: int = 1, prefetch: int | None = None, lag: Lag = FREE, max_age: int | None = None,
    backend: str = "jax",
) -> Plan:  # fmt: skip
    """`actors` replicas step, act and insert into a replay service; one learner draws and learns.

    `carrier` is the way to reach the service: `shm`, `tcp`, or by default a plain call in the same
    process and shared memory from other processes. The service has `shards`, each filled by some of
    the actors. While the learner computes, `prefetch` batches are drawn ahead: by default 2, or 0
    if everybody waits. With several devices the learner gets the last `learners` of them, and the
    actors share the others.
    """
    graph, free = served(graph), lag == FREE
    others, learning = apart(cluster, learners)
    acting = share_out(cluster, others, actors, graph.num_envs, learning)
    inserting = writers(graph) if free else ()
    ahead = (2 if free else 0) if prefetch is None else prefetch
    return Plan(
        graph,
        (
            Place("actor", ("env", "act", *inserting), acting, replicas=actors, backend=backend),
            Place("learner", ("learn", "gradient", "replay"), on=learning),
        ),
        **sampling("actor", "learner", lag, max_age, actors),
        serving=Serving(carrier, shards, ahead),
    )
