"""How strategies share out devices and environments, and exchange samples for parameters."""

from __future__ import annotations

import heapq
from collections.abc import Container, Mapping, Sequence
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
    cluster: Cluster,
    devices: Sequence[Device],
    replicas: int,
    num_envs: int,
    beside: Sequence[Device] = (),
) -> Sequence[Device]:
    """Return as many of the first `devices` as can be shared equally among the replicas.

    Either each device has equally many replicas, or each replica has equally many devices, among
    which its environments are divided. On several nodes, return one device for each replica. There,
    `beside` has the devices of other places, whose nodes have work without any of the replicas.
    """
    if cluster.nodes:
        return over_nodes(cluster, devices, replicas, beside)

    def fits(n: int) -> bool:
        return replicas % n == 0 or (n % replicas == 0 and num_envs % n == 0)

    counts = [n for n in range(1, len(devices) + 1) if replicas > 0 and fits(n)]
    return devices[: max(counts, default=1)]


def over_nodes(
    cluster: Cluster, devices: Sequence[Device], replicas: int, beside: Sequence[Device] = ()
) -> list[Device]:
    """Return a device for each replica: on each node as many replicas as it has power for.

    The power is the number of its `devices` or, if all of these are hosts, of its cores. Replicas
    with consecutive numbers are on one node. No node is idle if there are enough replicas. The
    nodes of `beside` have other work.
    """
    on_host = all(device.id.is_host for device in devices)
    on = {n: [d for d in devices if d.id.node == n.name] for n in cluster.nodes}
    powers = {n.name: n.cores if on_host else len(mine) for n, mine in on.items() if mine}
    counts = _dealt(powers, replicas, {device.id.node for device in beside})
    return [
        mine[k * len(mine) // counts[n.name]]
        for n, mine in on.items()
        if mine
        for k in range(counts[n.name])
    ]


def _dealt(powers: Mapping[str, int], replicas: int, busy: Container[str]) -> dict[str, int]:
    """Return the number of replicas for each node, in proportion to the powers of the nodes.

    First, each node that is not `busy` with other work gets a replica, those with most power first.
    If two nodes have an equal claim, a busy one gets the replica, because the replicas exchange
    messages with the work there.
    """
    idle = sorted((node for node in powers if node not in busy), key=lambda n: -powers[n])
    counts = dict.fromkeys(powers, 0) | dict.fromkeys(idle[: max(0, replicas)], 1)
    # The next replica goes to the node that would then have the fewest for its power.
    claims = [((n + 1) / powers[node], node not in busy, i, node)
              for i, (node, n) in enumerate(counts.items())]  # fmt: skip
    heapq.heapify(claims)
    for _ in range(replicas - sum(counts.values())):
        _, is_idle, i, node = claims[0]
        counts[node] += 1
        heapq.heapreplace(claims, ((counts[node] + 1) / powers[node], is_idle, i, node))
    return counts


def apart(cluster: Cluster, learners: int) -> tuple[Sequence[Device], Sequence[Device]]:
    """Return two lists: all devices but the last `learners`, and the last `learners` devices.

    If there is only one device, it is in both lists. On a cluster the learners are on one node, and
    on its accelerators if it has any; see `_apart_on_nodes`.
    """
    if cluster.nodes:
        return _apart_on_nodes(cluster, learners)
    devices, most = cluster.devices, max(1, len(cluster.devices) - 1)
    if not 1 <= learners <= most:
        raise PlanError(
            f"learners={learners}: there are {cluster}, so `learners` must be from 1 to {most}."
        )
    return (devices if len(devices) == 1 else devices[:-learners]), devices[-learners:]


def _apart_on_nodes(cluster: Cluster, learners: int) -> tuple[Sequence[Device], Sequence[Device]]:
    """Return the devices for others, and those of the learners, which are one process on one node.

    This is the node with the most accelerators, or with the most cores if there are none, and the
    last of these. The cores of its host may act, too, but an accelerator that learns does not.
    """
    fast = accelerators(cluster)
    on_host = fast[0].id.is_host
    mine = {n: [d for d in fast if d.id.node == n.name] for n in cluster.nodes}
    able = {n: n.cores if on_host else len(devices) for n, devices in mine.items()}
    # Of nodes with equally many, the last is taken, as on one machine the last device is.
    learner = max(reversed(cluster.nodes), key=able.__getitem__)
    most = len(mine[learner])
    if not 1 <= learners <= most:
        raise PlanError(
            f"learners={learners} devices must be on one node of {cluster}, because the learner is "
            f"one process, and `{learner.name}` has the most: use from 1 to {most} learners, or "
            f"`data_parallel`, whose replicas learn on every node."
        )
    learning = mine[learner][-learners:]
    others = [d for d in cluster.devices if on_host or d not in learning]
    if others:
        return others, learning
    if learners == 1:
        return learning, learning
    raise PlanError(
        f"learners={learners} are all devices of {cluster}, and none is left for the others: use "
        f"learners={learners - 1} or fewer."
    )


def accelerators(cluster: Cluster) -> list[Device]:
    """Return the accelerators of a cluster, or all its devices if it has none."""
    return [d for d in cluster.devices if not d.id.is_host] or list(cluster.devices)


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
