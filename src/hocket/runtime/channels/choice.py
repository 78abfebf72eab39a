"""The transport of a link: the one that its channel names, or else the first that can carry it."""

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
    """Refuse links that no transport can carry, or that the transport they name cannot."""
    free = plan.free
    if free and (named := plan.channel(free.learner, free.maker).transport):
        raise PlanError(
            f"the channel `{free.learner} -> {free.maker}` names the transport `{named}`, but with "
            f"lag=free the newest values do not go through a transport. Leave `transport` out of "
            f"that channel."
        )
    for link in links(plan):
        transport_of(plan, link)


def transport_of(plan: Plan, link: Link) -> Transport:
    """Return the transport of a link. Every process that asks gets the same one."""
    ends, reasons = ends_of(plan, link), ""
    if link.transport:
        named = _named(link)
        if not (reason := named.why_not(link, ends)):
            return named
        # A message without arrays may use any transport: it makes no difference to the user, and
        # some transports cannot carry one.
        if link.arrays:
            raise PlanError(
                f"{_channel(link)} cannot use `{link.transport}`: {reason} Leave `transport` out "
                f"of that channel, or name another: {', '.join(TRANSPORTS.names)}."
            )
    for name in sorted(TRANSPORTS.names, key=lambda name: _made(name).preference):
        if not (reason := _made(name).why_not(link, ends)):
            return _made(name)
        reasons += f"  {name}: {reason}\n"
    raise PlanError(
        f"nothing can carry `{link.name}` where instances run as `{plan.launch.name}`:\n{reasons}"
        f'Use launch="processes", or give your plan a transport that can, '
        f'`Channel(transport="file.py:NAME")` (examples/own_transport.py).'
    )


def ends_of(plan: Plan, link: Link) -> Ends:
    """Return the devices of a link's two ends, and what the two share."""
    launch = plan.launch
    source = devices_of(plan, link.transfer.source, link.source)
    shares = not launch.one_process and launch.shares_memory != "none"
    target = devices_of(plan, *link.end)
    return Ends(source, target, one_process=launch.one_process, share_memory=shares)


def devices_of(plan: Plan, place: str, index: int) -> tuple[DeviceId, ...]:
    """Return the devices of an instance, or of its place if the replicas are one program."""
    spot = plan.place(place)
    return spot.on if place in plan.grouped else spot.share(index)


def _channel(link: Link) -> str:
    return f"the channel `{link.transfer.source} -> {link.transfer.target}`"


def _named(link: Link) -> Transport:
    """Return the transport that a channel names."""
    try:
        return _made(link.transport)
    except ValueError as error:
        raise PlanError(f"{_channel(link)}: {error}") from error


@functools.cache
def _made(name: str) -> Transport:
    return TRANSPORTS.make(name, Transport)
