"""Anakin: environment, acting and learning in one program, with environments on all devices.

    device 0: [ env act learn ]  N/2 environments
                      |           gradients: XLA adds an all-reduce
    device 1: [ env act learn ]  N/2 environments

Hessel et al. 2021, "Podracer architectures for scalable Reinforcement Learning":
https://arxiv.org/abs/2104.06272
"""

from __future__ import annotations

from hocket.cluster import Cluster
from hocket.core.graph.host_calls import hosts
from hocket.core.graph.trace import Graph
from hocket.core.plan.data import Place, Plan
from hocket.core.program.fragment import ROLES
from hocket.errors import PlanError
from hocket.strategies.strategy import strategy


@strategy
def anakin(
    graph: Graph, cluster: Cluster, *, devices: int | None = None, callback: bool = False,
    backend: str = "jax",
) -> Plan:  # fmt: skip
    """One program that runs everything, on the first `devices` devices or by default on all.

    With `callback` the program may call environments that run on the host, once in each step. A
    program that calls such environments runs on one device.
    """
    if (on_host := hosts(graph)) and not callback:
        raise PlanError(
            f"{on_host[0].name} runs on the host, so `anakin` cannot compile it. Use "
            f'`distribute="sebulba"`, a pure environment (`hocket envs`), or '
            f"`anakin:callback=true`, which stops the compiled program at every step to call it."
        )
    if on_host and (devices or 1) > 1:
        raise PlanError(
            f"{on_host[0].name} runs on the host, and a program on {devices} devices cannot call "
            f"the host from each of them: leave out `devices`, or use `sebulba`."
        )
    on = cluster.first(1 if on_host and devices is None else devices, "anakin").devices
    return Plan(graph, (Place("anakin", run=ROLES, on=on, backend=backend),))
