"""Central inference: environments step on many places, one place acts for all and learns.

    env 0: [ env ] --observations-->
    env 1: [ env ] --observations-->  learner: [ act learn replay ]
    env 2: [ env ] --observations-->
       ^------- actions, every step -------+

Environments are cut in two halves, so that one half steps while the other half's actions are
computed. Espeholt et al. 2020 (SEED RL): https://arxiv.org/abs/1910.06591; Zhu et al. 2023 (MSRL),
"single learner fine".
"""

from __future__ import annotations

from hocket.cluster import Cluster
from hocket.core.graph import Graph
from hocket.core.plan import Place, Plan
from hocket.distribute.strategy import apart, share_out, strategy


@strategy
def central_inference(
    graph: Graph, cluster: Cluster, *, envs: int = 2, learners: int = 1, parts: int = 2,
    backend: str = "jax",
) -> Plan:  # fmt: skip
    """Observations up, actions down, each step: `envs` replicas that step, one place for the rest.

    With several devices the last `learners` act and learn, the environments share the others. In
    two `parts` of the environments both sides are busy; in one they take turns.
    """
    others, learning = apart(cluster, learners)
    stepping = share_out(others, envs, graph.num_envs)
    return Plan(
        graph,
        (
            Place("env", ("env",), on=stepping, replicas=envs, backend=backend),
            Place("learner", ("act", "learn", "gradient", "replay"), on=learning),
        ),
        parts=parts,
    )
