"""Which transport carries a link: the one that its channel names, or the first that can."""

from __future__ import annotations

import functools

from hocket.core.plan.data import Plan
from hocket.core.plan.device_id import DeviceId
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
    ends, why = ends_of(plan, link), {}
    if link.transport:
        named = _named(link)
        if not (reason := named.why_not(link, ends)):
            return named
        # Nobody would notice how a message without arrays goes, and not everything can carry one.
        if link.arrays:
            raise PlanError(
                f"{_channel(link)} cannot go by `{link.transport}`: {reason} Leave `transport` out "
                f"there, or name another: {', '.join(TRANSPORTS.names)}."
            )
    for name, transport in _by_preference():
        why[name] = transport.why_not(link, ends)
        if not why[name]:
            return transport
    reasons = "\n".join(f"  {name}: {reason}" for name, reason in why.items())
    raise PlanError(
        f"nothing can carry `{link.name}` where instances run as `{plan.launch.name}`:\n{reasons}\n"
        f'Name a transport that can in a plan of your own, `Channel(transport="file.py:NAME")` '
        f'(examples/own_transport.py), or use launch="processes".'
    )


def ends_of(plan: Plan, link: Link) -> Ends:
    """Where the two ends of a link are."""
    launch = plan.launch
    begin = link.transfer.source, link.source
    source, target = (devices_of(plan, *end) for end in (begin, link.end))
    shares = not launch.one_process and launch.shares_memory != "none"
    return Ends(source, target, one_process=launch.one_process, share_memory=shares)


def devices_of(plan: Plan, place: str, index: int) -> tuple[DeviceId, ...]:
    """The devices of one instance: all of its place's where the replicas are one program."""
    spot = plan.place(place)
    return spot.on if place in plan.grouped else spot.share(index)


def _channel(link: Link) -> str:
    return f"the channel `{link.transfer.source} -> {link.transfer.target}`"


def _named(link: Link) -> Transport:
    """The transport that a channel names."""
    try:
        return _made(link.transport)
    except ValueError as error:
        raise PlanError(f"{_channel(link)}: {error}") from error


@functools.cache
def _made(name: str) -> Transport:
    return TRANSPORTS.make(name, Transport)


@functools.cache
def _by_preference() -> list[tuple[str, Transport]]:
    every = [(name, _made(name)) for name in TRANSPORTS.names]
    return sorted(every, key=lambda found: found[1].preference)
