"""Data parallel: replicas of the whole loop, each with its own environments, average gradients.

    replica 0: [ env act learn ]  N/2 environments
                      |            `averaged`: the mean over replicas
    replica 1: [ env act learn ]  N/2 environments

As threads the replicas are one program. As processes they average through shared memory. Wijmans
et al. 2020 (DD-PPO): https://arxiv.org/abs/1911.00357; Zhu et al. 2023 (MSRL), "multiple learners".
"""

from __future__ import annotations

from hocket.cluster import Cluster
from hocket.core.graph.trace import Graph
from hocket.core.plan.data import Place, Plan
from hocket.core.program.fragment import ROLES
from hocket.strategies.sharing import accelerators, share_out
from hocket.strategies.strategy import strategy


@strategy
def data_parallel(
    graph: Graph, cluster: Cluster, *, replicas: int = 2, backend: str = "jax"
) -> Plan:
    """`replicas` of the whole loop, each on one device with its share of the environments."""
    # Every replica waits for the slowest, so one on a host would slow down those on accelerators.
    devices = accelerators(cluster) if cluster.nodes else cluster.devices[: max(1, replicas)]
    on = share_out(cluster, devices, replicas, graph.num_envs)
    return Plan(graph, (Place("replica", ROLES, on=on, replicas=replicas, backend=backend),))
