"""Means in two steps: between the replicas of each device, then between one of each.

The first of a device's replicas is its leader. The leaders average the means of their devices, and
each tells the result to the others of its own. So what crosses between GPUs is one vector a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import jax

from hocket.runtime.averaging import Address, Epoch, Joined, Members, Sites, Space
from hocket.runtime.averaging.in_memory import InMemory
from hocket.runtime.averaging.vectors import narrowed, widened
from hocket.runtime.averaging.ways import ipc, nccl, shm
from hocket.system.shared_memory import pages

OnDevice: TypeAlias = shm.OnHost | ipc.OnOneGpu
"""The replicas of one device, of which one can tell all others."""


class Hier:
    """The way, for `averaging.ways`."""

    name, preference = "hier", 30

    def note(self, members: Members) -> str:
        more = " (simulated)" if members.on_cpu else ", not run on several GPUs yet"
        inner = _on_device(members).name
        return f"`{inner}` on each device, `{nccl.AVERAGE.name}` between them{more}"

    def why_not(self, members: Members) -> str:
        sizes = [len(group) for group in members.groups]
        if len(sizes) == 1:
            return "all replicas are on one device, so there is only one step."
        if set(sizes) == {1}:
            return "every replica has a device of its own, so there is only one step."
        if len(set(sizes)) > 1:
            # The mean of means is the mean only where all are of equally many.
            text = ", ".join(map(str, sizes))
            return f"the devices must have equally many replicas, and they have {text}."
        inner, between = _on_device(members), members.some(_leading(members))
        steps = [(inner, members.some(group).at_once()) for group in members.groups]
        for way, part in [*steps, (nccl.AVERAGE, between)]:
            if why := way.why_not(part):
                return f"a step of it goes by `{way.name}`: {why}"
        return ""

    def is_choice(self, members: Members) -> bool:
        return True

    def room(self, members: Members, sites: Sites) -> int:
        parts = _parts(members, sites)
        return parts[-1].offset + parts[-1].nbytes

    def listen(self, members: Members, index: int, sites: Sites, space: Space | None) -> TwoSteps:
        assert space is not None
        *within, between = _parts(members, sites)
        at, mine = next((i, p) for i, p in enumerate(within) if index in p.indices)
        group, where = members.some(mine.indices).at_once(), space.part(mine.offset, mine.nbytes)
        inner = _on_device(members).listen(
            group, mine.indices.index(index), _twice(sites), where
        )  # fmt: skip
        if index not in between.indices:
            return TwoSteps(mine.indices, between.indices, inner, None)
        where = space.part(between.offset, between.nbytes)
        leaders = nccl.AVERAGE.listen(members.some(_leading(members)), at, sites, where)
        return TwoSteps(mine.indices, between.indices, inner, leaders)


class Reached(NamedTuple):
    """Where a replica is reached in both steps; the second one only where it is a leader."""

    inner: Address
    leader: Address = None


@dataclass(frozen=True)
class TwoSteps:
    """A replica that listens on its device and, where it leads there, for the other leaders."""

    group: tuple[int, ...]
    """The replicas of its device."""
    leading: tuple[int, ...]
    inner: InMemory[shm.OnHost] | InMemory[ipc.OnOneGpu]
    leaders: InMemory[shm.OnHost] | InMemory[nccl.BetweenGpus] | None

    @property
    def address(self) -> Reached:
        return Reached(self.inner.address, self.leaders and self.leaders.address)

    def join(self, addresses: Sequence[Address], epoch: Epoch) -> InTwoSteps:
        mine = self.inner.join([addresses[i].inner for i in self.group], epoch)
        if not self.leaders:
            return InTwoSteps(mine, None)
        try:
            leaders = self.leaders.join([addresses[i].leader for i in self.leading], epoch)
        except BaseException:
            mine.close()  # the others of this device are not waited for
            raise
        return InTwoSteps(mine, leaders)

    def close(self) -> None:
        for listener in (self.inner, self.leaders):
            if listener:
                listener.close()


class InTwoSteps:
    """A replica of one device; `leaders` only where it is the first of them."""

    def __init__(self, mine: OnDevice, leaders: Joined | None) -> None:
        self._mine, self._leaders = mine, leaders
        self._all: list[Joined] = [mine, *([leaders] if leaders else [])]

    def __call__(self, *xs: jax.Array) -> list[jax.Array]:
        means = self._mine(*map(widened, xs))  # so that a narrow float is rounded once
        if self._leaders:
            means = self._leaders(*means)
        means = self._mine(*means, root=0)
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


class _Part(NamedTuple):
    """One group that averages: who, and its memory."""

    indices: tuple[int, ...]
    offset: int
    nbytes: int


def _on_device(members: Members) -> shm.Shm | ipc.Ipc:
    """How it goes between the replicas of a device."""
    return ipc.AVERAGE if members.backends == {"mps"} else shm.AVERAGE


def _leading(members: Members) -> tuple[int, ...]:
    """The first replica of each device."""
    return tuple(group[0] for group in members.groups)


def _parts(members: Members, sites: Sites) -> list[_Part]:
    """Every group: those of the devices, then the leaders."""
    inner, leading = _on_device(members), _leading(members)
    rooms = [
        (group, inner.room(members.some(group).at_once(), _twice(sites)))
        for group in members.groups
    ]
    parts, end = list[_Part](), 0
    for indices, nbytes in [*rooms, (leading, nccl.AVERAGE.room(members.some(leading), sites))]:
        parts.append(_Part(indices, end, pages(nbytes)))
        end += parts[-1].nbytes
    return parts


def _twice(sites: Sites) -> Sites:
    """A mean, and the result back."""
    return [*sites, *sites]
