"""Which ways to average there are, and which of them the replicas of a place can choose from."""

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

AVERAGES = Registry(
    "way to average", "hocket.runtime.averaging.ways", "AVERAGE", group="hocket.averages"
)
_PARTS = ("name", "preference", "note", "why_not", "is_choice", "room", "listen")


def ways() -> dict[str, Average]:
    """Every way by its name, in their order of preference: ours, and those of other packages."""
    found = {name: find_way(name) for name in AVERAGES.names}
    return dict(sorted(found.items(), key=lambda item: (item[1].preference, item[0])))


@cache
def find_way(name: str) -> Average:
    """The way of this name, or of `module:NAME` or `file.py:NAME`; of a class, an object of it."""
    try:
        found = AVERAGES[name]
    except ValueError as error:
        raise PlanError(str(error)) from None
    way = found() if isinstance(found, type) else found
    if not isinstance(way, Average):
        missing = ", ".join(f"`{part}`" for part in _PARTS if part not in dir(way))
        raise PlanError(
            f"`{name}` is no way to average: it has no {missing}. `hocket.runtime.averaging` says "
            f"in `Average` what one has."
        )
    return way


def choices(members: Members, wanted: str = "", *, is_exact: bool = False) -> list[str]:
    """The ways to choose from; a way that was asked for is refused where it cannot be had.

    With `is_exact` no clock chooses, since ways round in different orders: there is one.
    """
    if wanted:
        if why := find_way(wanted).why_not(members):
            raise PlanError(f"`averaged` cannot go by `{wanted}` here: {why} Name no way.")
        return [wanted]
    reasons = {name: way.why_not(members) for name, way in ways().items()}
    found = [n for n, way in ways().items() if not reasons[n] and way.is_choice(members)]
    if not found:
        text = " ".join(f"`{name}`: {why}" for name, why in reasons.items() if why)
        raise PlanError(f"there is no way to average between these replicas. {text}")
    return found[:1] if is_exact else found


def check_averages(plan: Plan) -> None:
    """Refuse ways to average that nobody knows, or that the replicas of a plan cannot have."""
    for place in sorted(plan.averaging - plan.grouped):
        try:
            # Of each way it is asked, too, how much memory it takes: some refuse settings there.
            Averaging.of(plan, place).nbytes  # noqa: B018
        except PlanError as error:
            raise PlanError(f"the replicas of `{place}`: {error}") from None


@dataclass(frozen=True)
class Averaging:
    """What the replicas of a place average, and the way that was asked for."""

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
        """The shared memory they need: of the way that is used, and of a trial of each choice."""
        return self._most + sum(self._trials.values())

    def room(self, way: str, space: Space | None, *, is_trial: bool) -> tuple[Sites, Space | None]:
        """What a way averages, in use or in a trial, and its part of `space`, of `nbytes` bytes."""
        if not is_trial:
            sites = roomy(self.sites)
            return sites, space and space.part(0, pages(find_way(way).room(self.members, sites)))
        names = list(self._trials)
        before = self._most + sum(self._trials[name] for name in names[: names.index(way)])
        return [largest(self.sites)], space and space.part(before, self._trials[way])

    @cached_property
    def _most(self) -> int:
        sites = roomy(self.sites)
        return max(pages(find_way(name).room(self.members, sites)) for name in self.choices)

    @cached_property
    def _trials(self) -> dict[str, int]:
        if len(self.choices) == 1:
            return {}
        site, members = largest(self.sites), self.members.at_once()
        return {name: pages(find_way(name).room(members, [site])) for name in self.choices}


def largest(sites: Sites) -> Sequence[Any]:
    return max(sites, key=data_bytes)


def data_bytes(site: Sequence[Any]) -> int:
    return sum(x.size * x.dtype.itemsize for x in site)


def roomy(sites: Sites) -> list[Sequence[Any]]:
    """The sites and as many again: XLA may copy a part of a program, and a site with it."""
    order = sorted(sites, key=data_bytes, reverse=True)
    return [*order, *order]


def pages(nbytes: int) -> int:
    return nbytes + -nbytes % 4096
