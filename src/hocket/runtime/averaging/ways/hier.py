"""Means in two steps: between the replicas of each device, then between one of each.

The first of a device's replicas is its leader. The leaders average the means of their devices, and
each tells the result to the others of its own. So what crosses between GPUs is one vector a GPU.
"""

from __future__ import annotations

import jax

from hocket.runtime.averaging import Joined, Members, Sites, Space, Way
from hocket.runtime.averaging.choice import pages, ways
from hocket.runtime.averaging.vectors import narrowed, widened


class Hier:
    """The way, for `reduce.ways`."""

    name = "hier"

    def note(self, members: Members) -> str:
        inner, outer = _steps(members)
        more = " (simulated)" if members.on_cpu else ", not run on several GPUs yet"
        return f"`{inner.name}` on each device, `{outer.name}` between them{more}"

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
        return ""

    def is_choice(self, members: Members) -> bool:
        return True

    def nbytes(self, members: Members, sites: Sites) -> int:
        return sum(nbytes for _, _, nbytes in _parts(members, sites))

    def headers(self, members: Members, sites: Sites) -> list[int]:
        sizes = [nbytes for _, _, nbytes in _parts(members, sites)]
        return [sum(sizes[:i]) for i in range(len(sizes))]

    def join(
        self, space: Space, members: Members, index: int, sites: Sites, delay: float
    ) -> Joined:
        offset, mine, leaders = space.offset, None, None
        for way, indices, nbytes in _parts(members, sites):
            part = Space(space.arena, offset, nbytes)
            offset += nbytes
            if index not in indices:
                continue
            some, at = members.some(indices), indices.index(index)
            if way is _steps(members)[0] and mine is None:
                mine = way.join(part, some, at, _twice(sites), 0.0)
                continue
            assert mine is not None
            try:
                leaders = way.join(part, some, at, sites, delay)
            except BaseException:
                mine.close()  # the others of this device are not waited for
                raise
        assert mine is not None
        return InTwoSteps(mine, leaders)


class InTwoSteps:
    """A replica of one device; `leaders` only where it is the first of them."""

    def __init__(self, mine: Joined, leaders: Joined | None) -> None:
        self._mine, self._leaders = mine, leaders
        self._all = [mine, *([leaders] if leaders else [])]

    def __call__(self, *xs: jax.Array, root: int = -1) -> list[jax.Array]:
        assert root < 0, "the mean of all is all that it makes"
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


WAY = Hier()


def _steps(members: Members) -> tuple[Way, Way]:
    """How it goes on a device, and between devices."""
    inner = "ipc" if members.backends == {"mps"} else "shm"
    return ways()[inner], ways()["nccl"]


def _parts(members: Members, sites: Sites) -> list[tuple[Way, tuple[int, ...], int]]:
    """Every group that averages: how, who, and its memory; the leaders last."""
    inner, outer = _steps(members)
    leaders = tuple(group[0] for group in members.groups)
    within = [
        (inner, group, pages(inner.nbytes(members.some(group), _twice(sites))))
        for group in members.groups
    ]
    return [*within, (outer, leaders, pages(outer.nbytes(members.some(leaders), sites)))]


def _twice(sites: Sites) -> Sites:
    """A mean, and the result back."""
    return [*sites, *sites]
