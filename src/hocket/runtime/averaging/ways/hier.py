"""Averages arrays in two steps: over the replicas of each device, then over the devices.

The first replica of a device is its leader. The leaders average the means of their devices, and
each leader passes the result on to the other replicas of its device. So each GPU exchanges only one
vector with the others, however many replicas it has.
"""

from __future__ import annotations

from typing import Any

import jax

from hocket.runtime.averaging import Joined, Members, Sites, Space
from hocket.runtime.averaging.groups import InMemory, MemoryGroup, SharedMemoryWay
from hocket.runtime.averaging.vectors import narrowed, widened
from hocket.runtime.averaging.ways import ipc, nccl, shm
from hocket.system.shared_memory import pages


class Hier(SharedMemoryWay):
    """The way to average on each device first, and then between the devices."""

    name, preference = "hier", 30

    def note(self, members: Members) -> str:
        more = " (simulated)" if members.on_host else ", not run on several GPUs yet"
        inner = _on_device(members).name
        return f"`{inner}` on each device, `{nccl.AVERAGE.name}` between them{more}"

    def why_not(self, members: Members) -> str:
        sizes = [len(group) for group in members.groups]
        if len(sizes) == 1:
            return "all replicas are on one device, so there is only one step."
        if set(sizes) == {1}:
            return "every replica has a device of its own, so there is only one step."
        if len(set(sizes)) > 1:
            # The mean of the devices' means is the mean over replicas only if all devices have the
            # same number of replicas.
            text = ", ".join(map(str, sizes))
            return f"the devices must have equally many replicas, and they have {text}."
        inner, between = _on_device(members), _leaders(members)
        steps = [(inner, members.some(group).at_once()) for group in members.groups]
        for way, part in [*steps, (nccl.AVERAGE, between)]:
            if why := way.why_not(part):
                return f"one of its steps uses `{way.name}`: {why}"
        return ""

    def room(self, members: Members, sites: Sites) -> int:
        within, between = _rooms(members, sites)
        return len(members.groups) * within + between

    def listen(
        self, members: Members, index: int, sites: Sites, space: Space | None
    ) -> InMemory[InTwoSteps]:
        assert space is not None
        # The memory has one part for each device's replicas, and then a part for the leaders.
        within, between = _rooms(members, sites)
        at, group = next((i, g) for i, g in enumerate(members.groups) if index in g)
        rank, here = group.index(index), members.some(group).at_once()
        part = space.part(at * within, within)
        inner = _on_device(members).listen(here, rank, [*sites, *sites], part)
        if rank:
            return InMemory(lambda: InTwoSteps(inner.enter()))
        part = space.part(len(members.groups) * within, between)
        leaders = nccl.AVERAGE.listen(_leaders(members), at, sites, part)
        return InMemory(lambda: _leader(inner, leaders))


class InTwoSteps:
    """A replica that averages with the others on its device, and then across devices.

    For the second step, each device has one replica as its leader. The leaders average with each
    other, and every replica takes the result of its leader. `leaders` is None unless this replica
    is a leader.
    """

    def __init__(self, mine: MemoryGroup, leaders: Joined | None = None) -> None:
        self._mine, self._leaders = mine, leaders
        self._all = [mine, *([leaders] if leaders else [])]

    def __call__(self, *xs: jax.Array) -> list[jax.Array]:
        means = self._mine(*map(widened, xs))  # narrow floats are rounded only at the end
        if self._leaders:
            means = self._leaders(*means)
        means = self._mine(*means, root=0)  # every replica takes the leader's result
        return [narrowed(mean, x) for mean, x in zip(means, xs, strict=True)]

    def counts(self) -> tuple[int, int, int]:
        calls, nbytes, waited = (sum(n) for n in zip(*(x.counts() for x in self._all), strict=True))
        return calls, nbytes, waited

    def check(self) -> None:
        for joined in self._all:
            joined.check()

    def close(self) -> None:
        for joined in self._all:
            joined.close()

    def free(self) -> None:
        for joined in self._all:
            joined.free()


AVERAGE = Hier()


def _leader(inner: InMemory[Any], leaders: InMemory[Any]) -> InTwoSteps:
    """Make a leader join both of its groups: the replicas of its device, and the leaders."""
    mine = inner.enter()
    try:
        return InTwoSteps(mine, leaders.enter())
    except BaseException:
        mine.close()  # otherwise the other replicas of this device would wait for ever
        raise


def _on_device(members: Members) -> shm.Shm | ipc.Ipc:
    """Return the way by which the replicas of one device average."""
    return ipc.AVERAGE if members.run_as_one else shm.AVERAGE


def _leaders(members: Members) -> Members:
    """Return the first replica of each device."""
    return members.some([group[0] for group in members.groups])


def _rooms(members: Members, sites: Sites) -> tuple[int, int]:
    """Return two sizes in bytes: the memory for the replicas of one device, and for the leaders."""
    here = members.some(members.groups[0]).at_once()
    # Replicas of a device make two calls at every site: one averages, and one passes on the
    # leader's result.
    within = _on_device(members).room(here, [*sites, *sites])
    return pages(within), pages(nccl.AVERAGE.room(_leaders(members), sites))
