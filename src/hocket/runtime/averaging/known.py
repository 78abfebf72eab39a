"""All ways to average, and the ways that the replicas of a place can choose from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from hocket.core.plan.data import Mean, Plan
from hocket.core.plan.traffic import average_sites
from hocket.errors import PlanError
from hocket.runtime.averaging import Average, Members, Sites, Space
from hocket.system.registry import Registry
from hocket.system.shared_memory import pages

AVERAGES = Registry(
    "way to average", "hocket.runtime.averaging.ways", "AVERAGE", group="hocket.averages"
)


def ways() -> dict[str, Average]:
    """Return all ways by name, built-in or from installed packages, in order of preference."""
    every = sorted((find_way(name).preference, name) for name in AVERAGES.names)
    return {name: find_way(name) for _, name in every}


@cache
def find_way(name: str) -> Average:
    """Return the way with this name, `module:NAME` or `file.py:NAME`. If it is a class, call it."""
    try:
        return AVERAGES.make(name, Average)
    except ValueError as error:
        raise PlanError(str(error)) from None


def choices(members: Members, wanted: str = "", *, is_exact: bool = False) -> list[str]:
    """Return the names of the ways to average that hocket may choose from.

    If `wanted` names a way, return only that one, or raise PlanError if it cannot work here.

    With `is_exact`, return only the most preferred way. The means of different ways differ in
    rounding, so a choice by measured speed could change the numbers from run to run.
    """
    if wanted:
        if why := find_way(wanted).why_not(members):
            raise PlanError(
                f"`averaged` cannot use `{wanted}` here: {why} Leave "
                f"`{wanted}` out, and hocket chooses a way."
            )
        return [wanted]
    reasons = {name: way.why_not(members) for name, way in ways().items()}
    names = [name for name, why in reasons.items() if not why and find_way(name).is_choice(members)]
    if not names:
        text = " ".join(f"`{name}`: {why}" for name, why in reasons.items() if why)
        nodes = {device.node for device in members.on if device}
        instead = "replicas on CPUs or on one node" if len(nodes) > 1 else 'launch="processes"'
        raise PlanError(
            f"there is no way to average between these replicas. {text} Use {instead}, or give "
            f"your plan a way that needs no shared memory, "
            f'`means={{PLACE: Mean(way="file.py:NAME")}}`, as in examples/own_average.py.'
        )
    return names[:1] if is_exact else names


def check_averages(plan: Plan) -> None:
    """Refuse a plan with a way to average that does not exist, or that its replicas cannot use."""
    for place in sorted(plan.means.keys() & plan.grouped):
        raise PlanError(
            f"the replicas of `{place}` are one program in this process, so their mean takes "
            f'neither a way nor a delay. Leave `{place}` out of `means`, or use launch="processes".'
        )
    for place in sorted(plan.averaging - plan.grouped):
        try:
            # Computing the bytes calls `room`, where some ways check their settings.
            Averaging.of(plan, place).nbytes  # noqa: B018
        except PlanError as error:
            raise PlanError(f"the replicas of `{place}`: {error}") from None


@dataclass(frozen=True)
class Averaging:
    """The replicas of one place, and the arrays that they average.

    `wanted` is the name of the way to average that the plan asks for; "" if hocket may choose.
    """

    members: Members
    sites: Sites
    wanted: str = ""
    is_exact: bool = False

    @staticmethod
    def of(plan: Plan, place: str) -> Averaging:
        wanted, exact = plan.means.get(place, Mean()).way, plan.graph.exact
        return Averaging(Members.of(plan, place), average_sites(plan, place), wanted, exact)

    @cached_property
    def choices(self) -> tuple[str, ...]:
        return tuple(choices(self.members, self.wanted, is_exact=self.is_exact))

    @cached_property
    def nbytes(self) -> int:
        """The bytes of shared memory to reserve, before the way to average is known.

        They suffice for the trials of all ways, and for any way that the run then uses.
        """
        return max(begin + nbytes for begin, nbytes in self._parts.values())

    def part(self, way: str, space: Space | None, *, is_trial: bool) -> Space | None:
        """Return the part of the shared memory that a way uses in the run, or in its trial."""
        return space and space.part(*self._parts[way, is_trial])

    def given(self, *, is_trial: bool) -> tuple[Members, Sites]:
        """Return the replicas and the calls of `averaged` that a way must be prepared for.

        A trial, which measures the way, makes only the largest call, without an added delay.
        """
        if is_trial:
            return self.members.at_once(), [largest(self.sites)]
        return self.members, roomy(self.sites)

    @cached_property
    def _parts(self) -> dict[tuple[str, bool], tuple[int, int]]:
        """The offset and size, in bytes, of the shared memory for each (way, is_trial)."""

        def room(way: str, is_trial: bool) -> int:
            return pages(find_way(way).room(*self.given(is_trial=is_trial)))

        parts = {(way, False): (0, room(way, False)) for way in self.choices}
        end = max(nbytes for _, nbytes in parts.values())
        for way in self.choices if len(self.choices) > 1 else ():
            parts[way, True] = end, room(way, True)
            end += parts[way, True][1]
        return parts


def largest(sites: Sites) -> Sequence[Any]:
    return max(sites, key=data_bytes)


def data_bytes(site: Sequence[Any]) -> int:
    return sum(x.size * x.dtype.itemsize for x in site)


def roomy(sites: Sites) -> list[Sequence[Any]]:
    """Return every call site twice, because XLA may duplicate the code that contains it."""
    return sorted(sites, key=data_bytes, reverse=True) * 2
