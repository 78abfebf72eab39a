"""Central inference: environments step in many replicas, and one place acts for all and learns.

    env 0: [ env ] --observations-->
    env 1: [ env ] --observations-->  learner: [ act learn replay ]
    env 2: [ env ] --observations-->
       ^------- actions, every step -------+

Each replica's environments are cut in two halves: one half steps while the actions of the other
are computed. With `lag=free` the learner is a place of its own, and nobody waits for it. Espeholt
et al. 2020 (SEED RL): https://arxiv.org/abs/1910.06591; Zhu et al. 2023 (MSRL), "single learner
fine".
"""

from __future__ import annotations

from hocket.cluster import Cluster
from hocket.core.graph.trace import Graph
from hocket.core.plan.data import Place, Plan
from hocket.strategies.sharing import apart, sampling, share_out
from hocket.strategies.strategy import Lag, strategy


@strategy
def central_inference(
    graph: Graph, cluster: Cluster, *, envs: int = 2, learners: int = 1, parts: int = 2,
    lag: Lag = 0, max_age: int | None = None, backend: str = "jax",
) -> Plan:  # fmt: skip
    """`envs` replicas step environments, and one place computes all actions and learns.

    In each step, observations go to that place, and actions come back. With several devices the
    last `learners` act and learn, and the environments share the others. If the environments are
    cut into two `parts`, one part steps while the actions of the other are computed. With one part,
    stepping and acting take turns. With a `lag`, a third place acts while the learner learns. Its
    parameters are `lag` iterations late, or with `lag=free` the newest.
    """
    others, learning = apart(cluster, learners)
    stepping = share_out(cluster, others, envs, graph.num_envs, learning)
    env = Place("env", ("env",), on=stepping, replicas=envs, backend=backend)
    learn = ("learn", "gradient", "replay")
    if lag == 0:
        return Plan(graph, (env, Place("learner", ("act", *learn), on=learning)), parts=parts)
    return Plan(
        graph,
        (env, Place("actor", ("act",), on=learning[:1]), Place("learner", learn, on=learning)),
        **sampling("actor", "learner", lag, max_age, 1),
        parts=parts,
    )
