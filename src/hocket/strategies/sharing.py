"""How strategies share out devices and environments, and the channels of samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from hocket.cluster import Cluster, Device
from hocket.core.plan.data import Channel, Launch
from hocket.core.plan.schedule import Free, Pair, Schedule
from hocket.errors import PlanError
from hocket.strategies.strategy import FREE, Lag


class PlanArguments(TypedDict, total=False):
    """How places exchange samples and what these are made with, as arguments of `Plan`."""

    channels: dict[str, Channel]
    schedule: Schedule


PROCESSES = Launch("processes", one_process=False, one_program=False, shares_memory="node")
"""What a strategy asks for whose instances must be processes."""


def share_out(devices: Sequence[Device], replicas: int, num_envs: int) -> Sequence[Device]:
    """As many of the devices as so many replicas can share equally, with their environments."""

    def fits(n: int) -> bool:
        return replicas % n == 0 or (n % replicas == 0 and num_envs % n == 0)

    counts = [n for n in range(1, len(devices) + 1) if replicas > 0 and fits(n)]
    return devices[: max(counts, default=1)]


def apart(cluster: Cluster, learners: int) -> tuple[Sequence[Device], Sequence[Device]]:
    """The devices in two: all but the last `learners`, and those; if there is one, it twice."""
    devices = cluster.devices
    if not 1 <= learners <= max(1, len(devices) - 1):
        raise PlanError(f"{learners} learner devices beside others were asked for of {cluster}.")
    return (devices[:-learners], devices[-learners:]) if len(devices) > 1 else (devices, devices)


def sampling(
    makers: str, learner: str, lag: Lag, max_age: int | None, replicas: int, batch: int = 1
) -> PlanArguments:
    """Samples from `makers` to `learner`, and back what the next ones are made with.

    That is `lag` iterations late. With `lag=free` it is the newest there is, `batch` samples are
    learned from at a time, and at most `max_age` iterations later: by default with room for one of
    each of the `replicas`.
    """
    if not isinstance(lag, int):
        usual = -(-replicas // max(1, batch))
        age = usual if max_age is None else max_age
        return {"schedule": Free(Pair(learner, makers, age, batch))}
    if batch != 1:
        raise PlanError(
            f"batch={batch} is for lag={FREE}, and lag={lag} waits for the samples of all: use "
            f"lag={FREE}, or leave `batch` out."
        )
    if max_age is not None:
        raise PlanError(
            f"max_age={max_age} is for lag={FREE}, and lag={lag}: use lag={FREE}, or leave "
            f"`max_age` out."
        )
    return {
        "channels": {
            f"{makers} -> {learner}": Channel(capacity=max(1, lag)),
            f"{learner} -> {makers}": Channel(lag=lag),
        }
    }
