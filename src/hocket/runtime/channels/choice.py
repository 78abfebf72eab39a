"""The transport of a link: the one its channel names, or else the first that can carry the link."""

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
    """Refuse a plan if no transport can carry one of its links.

    If a channel names a transport, that transport must be able to carry the links of the channel.
    """
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
    """Return the transport of a link. All processes of a run get the same answer."""
    ends, reasons = ends_of(plan, link), ""
    if link.transport:
        named = _named(link)
        if not (reason := named.why_not(link, ends)):
            return named
        # For a message without arrays, ignore the name and take any transport: the user sees no
        # difference, and some transports cannot carry such a message.
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
        f"no transport can carry `{link.name}` with the launcher `{plan.launch.name}`:\n{reasons}"
        f'Use launch="processes", or give your plan a transport that can, '
        f'`Channel(transport="file.py:NAME")`, as in examples/own_transport.py.'
    )


def ends_of(plan: Plan, link: Link) -> Ends:
    """Return the devices of a link's two ends, and whether the ends share a process or memory."""
    launch = plan.launch
    source = devices_of(plan, link.transfer.source, link.source)
    target = devices_of(plan, *link.end)
    one_node = len({device.node for device in (*source, *target)}) < 2
    shares = not launch.one_process and launch.shares_memory != "none" and one_node
    return Ends(source, target, one_process=launch.one_process, share_memory=shares)


def devices_of(plan: Plan, place: str, index: int) -> tuple[DeviceId, ...]:
    """Return the devices of an instance.

    If the replicas of its place run as one program, the instance has all devices of the place.
    """
    spot = plan.place(place)
    return spot.on if place in plan.grouped else spot.share(index)


def _channel(link: Link) -> str:
    return f"the channel `{link.transfer.source} -> {link.transfer.target}`"


def _named(link: Link) -> Transport:
    """Return the transport that the channel of a link names."""
    try:
        return _made(link.transport)
    except ValueError as error:
        raise PlanError(f"{_channel(link)}: {error}") from error


@functools.cache
def _made(name: str) -> Transport:
    return TRANSPORTS.make(name, Transport)
