"""How strategies share out devices and environments, and exchange samples for parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from hocket.cluster import Cluster, Device
from hocket.core.plan.data import Channel, Launch
from hocket.core.plan.schedule import Free, Pair, Schedule
from hocket.errors import PlanError
from hocket.strategies.strategy import FREE, Lag


class PlanArguments(TypedDict, total=False):
    """The arguments of `Plan` for the exchange of samples and parameters."""

    channels: dict[str, Channel]
    schedule: Schedule


PROCESSES = Launch("processes", one_process=False, one_program=False, shares_memory="node")
"""The launch setting of strategies whose instances must be processes."""


def share_out(
    cluster: Cluster, devices: Sequence[Device], replicas: int, num_envs: int
) -> Sequence[Device]:
    """Return as many of the first `devices` as can be shared equally among the replicas.

    Either each device has equally many replicas, or each replica has equally many devices, among
    which its environments are divided. On several nodes, return one device for each replica.
    """
    if cluster.nodes:
        return _over_nodes(cluster, devices, replicas)

    def fits(n: int) -> bool:
        return replicas % n == 0 or (n % replicas == 0 and num_envs % n == 0)

    counts = [n for n in range(1, len(devices) + 1) if replicas > 0 and fits(n)]
    return devices[: max(counts, default=1)]


def _over_nodes(cluster: Cluster, devices: Sequence[Device], replicas: int) -> Sequence[Device]:
    """Return a device for each replica: on each node as many replicas as it has power for.

    That is the number of its accelerators or, if the replicas run on the hosts, of its cores.
    Replicas with consecutive numbers are on one node.
    """
    on_host = all(device.id.is_host for device in devices)
    on = {n: [d for d in devices if d.id.node == n.name] for n in cluster.nodes}
    powers = {n: n.cores if on_host else len(mine) for n, mine in on.items() if mine}
    total, given, result = sum(powers.values()), 0, list[Device]()
    for node, power in powers.items():
        given += power
        count = replicas * given // total - len(result)
        result += [on[node][k * len(on[node]) // count] for k in range(count)]
    return result


def apart(cluster: Cluster, learners: int) -> tuple[Sequence[Device], Sequence[Device]]:
    """Return two lists: all devices but the last `learners`, and the last `learners` devices.

    If there is only one device, it is in both lists. On the hosts of several nodes, the first list
    has all devices, since every node has cores to act with.
    """
    devices, most = cluster.devices, max(1, len(cluster.devices) - 1)
    if not 1 <= learners <= most:
        raise PlanError(
            f"learners={learners}: there are {cluster}, so `learners` must be from 1 to {most}."
        )
    if len(devices) == 1 or (cluster.nodes and all(device.id.is_host for device in devices)):
        return devices, devices[-learners:]
    return devices[:-learners], devices[-learners:]


def sampling(
    makers: str, learner: str, lag: Lag, max_age: int | None, replicas: int, batch: int = 1
) -> PlanArguments:
    """Return arguments of `Plan` by which `makers` send samples, and `learner` sends parameters.

    `makers` and `learner` are the names of two places. Parameters arrive `lag` iterations late.
    With `lag=free` makers use the newest parameters, and the learner learns from `batch` samples at
    a time, each at most `max_age` iterations old. `makers` has `replicas` instances, and by default
    `max_age` is just enough to learn from one sample of each.
    """
    if not isinstance(lag, int):
        age = -(-replicas // max(1, batch)) if max_age is None else max_age
        return {"schedule": Free(Pair(learner, makers, age, batch))}
    if batch != 1:
        raise PlanError(
            f"batch={batch} is for lag={FREE}, but lag={lag} waits for the samples of all: use "
            f"lag={FREE}, or leave `batch` out."
        )
    if max_age is not None:
        raise PlanError(
            f"max_age={max_age} is for lag={FREE}, but lag={lag}: use lag={FREE}, or leave "
            f"`max_age` out."
        )
    return {
        "channels": {
            f"{makers} -> {learner}": Channel(capacity=max(1, lag)),
            f"{learner} -> {makers}": Channel(lag=lag),
        }
    }
