"""Which transport carries a link: the one that its channel names, or the first that can."""

from __future__ import annotations

import functools

from hocket.core.plan.data import Plan
from hocket.errors import PlanError
from hocket.runtime.channels import Ends, Transport
from hocket.runtime.channels.links import Link, links
from hocket.system.registry import Registry

TRANSPORTS = Registry(
    "transport", "hocket.runtime.channels.transports", "TRANSPORT", group="hocket.transports"
)


def check_transports(plan: Plan) -> None:
    """Refuse a link that nothing can carry, or not what its channel names."""
    free = plan.free
    if free and (named := plan.channel(free.learner, free.maker).transport):
        raise PlanError(
            f"the channel `{free.learner} -> {free.maker}` names the transport `{named}`, and "
            f"where nobody waits the newest values go by a way of their own. Leave `transport` out "
            f"there."
        )
    for link in links(plan):
        transport_of(plan, link)


def transport_of(plan: Plan, link: Link) -> Transport:
    """The transport of a link; the same in every process that asks."""
    ends = ends_of(plan, link)
    # Nobody would notice how a message without arrays goes, and not everything can carry one.
    if link.transport and (link.arrays or not _found(link).why_not(link, ends)):
        return _named(link, ends)
    why = {}
    for name, transport in _by_preference():
        why[name] = transport.why_not(link, ends)
        if not why[name]:
            return transport
    reasons = "\n".join(f"  {name}: {reason}" for name, reason in why.items())
    raise PlanError(f"nothing can carry `{link.name}`:\n{reasons}")


def ends_of(plan: Plan, link: Link) -> Ends:
    """Where the two ends of a link are."""
    launch = plan.launch
    source, target = (
        _devices(plan, place, index)
        for place, index in ((link.transfer.source, link.source), link.end)
    )
    shares = not launch.one_process and launch.shares_memory != "none"
    return Ends(source, target, one_process=launch.one_process, share_memory=shares)


def _devices(plan: Plan, place: str, index: int) -> tuple[str, ...]:
    spot = plan.place(place)
    return spot.on if place in plan.grouped else spot.share(index)


def _named(link: Link, ends: Ends) -> Transport:
    found = _found(link)
    if why := found.why_not(link, ends):
        raise PlanError(
            f"{_channel(link)} cannot go by `{link.transport}`: {why} Leave `transport` out there, "
            f"or name another: {', '.join(TRANSPORTS.names)}."
        )
    return found


def _channel(link: Link) -> str:
    return f"the channel `{link.transfer.source} -> {link.transfer.target}`"


def _found(link: Link) -> Transport:
    """The transport that a channel names."""
    where = _channel(link)
    try:
        found = TRANSPORTS[link.transport]
    except ValueError as error:
        raise PlanError(f"{where}: {error}") from error
    if isinstance(found, type) or not isinstance(found, Transport):
        missing = [name for name in _members() if name not in dir(found)]
        what = "is a class: name an object of it" if isinstance(found, type) else (
            f"has no {', '.join(f'`{name}`' for name in missing)}"
        )  # fmt: skip
        raise PlanError(f"{where} names `{link.transport}` as its transport, which {what}.")
    return found


def _members() -> list[str]:
    members = [*Transport.__annotations__, *vars(Transport)]
    return [name for name in members if not name.startswith("_")]


@functools.cache
def _by_preference() -> list[tuple[str, Transport]]:
    every = [(name, TRANSPORTS[name]) for name in TRANSPORTS.names]
    return sorted(every, key=lambda found: found[1].preference)
