"""Actors and a learner: actors act with parameters that the learner sends, and the learner learns.

    actor 0: [ env act ] --trajectories-->
    actor 1: [ env act ] --trajectories-->  learner: [ learn replay ]
    actor 2: [ env act ] --trajectories-->
        ^------------ parameters, once an iteration ----+

With `lag=1` actors gather the next trajectories while the learner learns from the last ones. With
`lag=free` nobody waits. Zhu et al. 2023 (MSRL), "single learner coarse":
https://www.usenix.org/conference/atc23/presentation/zhu-huanzhou; Espeholt et al. 2018 (IMPALA):
https://arxiv.org/abs/1802.01561
"""

from __future__ import annotations

from hocket.cluster import Cluster
from hocket.core.graph.trace import Graph
from hocket.core.plan.data import Place, Plan
from hocket.strategies.sharing import apart, sampling, share_out
from hocket.strategies.strategy import Lag, strategy


@strategy
def actor_learner(
    graph: Graph, cluster: Cluster, *, actors: int = 2, learners: int = 1, lag: Lag = 0,
    max_age: int | None = None, batch: int = 1, backend: str = "jax",
) -> Plan:  # fmt: skip
    """Trajectories up, parameters down: `actors` replicas step and act, and one learner learns.

    With several devices the learner gets the last `learners` of them, and the actors share the
    others. With `lag=free` nobody waits: the learner learns from the trajectories of any actor, or
    of a `batch` of actors, as soon as they arrive.
    """
    others, learning = apart(cluster, learners)
    acting = share_out(cluster, others, actors, graph.num_envs, learning)
    return Plan(
        graph,
        (
            Place("actor", ("env", "act"), on=acting, replicas=actors, backend=backend),
            Place("learner", ("learn", "gradient", "replay"), on=learning),
        ),
        **sampling("actor", "learner", lag, max_age, actors, batch),
    )
