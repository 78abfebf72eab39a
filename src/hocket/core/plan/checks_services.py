"""What a plan refuses of services, by name, before anything starts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hocket.core.graph.host_calls import HostCall, host_call
from hocket.core.graph.served import only_gives
from hocket.core.graph.trace import Node, nodes_in
from hocket.core.program.service import Service, Shapes, services
from hocket.errors import PlanError

if TYPE_CHECKING:
    from hocket.core.plan.data import Plan


def check_services(plan: Plan) -> None:
    """Refuse services that are asked from places whose order is a matter of chance."""
    how = plan.serving
    if how.shards < 1 or how.prefetch < 0:
        raise PlanError(
            f"a service has at least 1 shard and fetches at least 0 answers ahead, found "
            f"shards={how.shards} and prefetch={how.prefetch}."
        )
    if not plan.graph.served:
        return
    if not plan.free and (how.shards > 1 or how.prefetch):
        what = f"shards={how.shards}" if how.shards > 1 else f"prefetch={how.prefetch}"
        raise PlanError(
            f"{what} draws other rows than one program would: use it with lag=free, or leave it "
            f"out."
        )
    for service in services(plan.graph.state):
        service.check(how, _given(plan, service) if how.shards > 1 else ())
        _check_places(plan, service)
        _check_shards(plan, service)


def users(plan: Plan, service: Service) -> dict[str, list[Node]]:
    """The nodes that call functions of a service, by their place."""
    found: dict[str, list[Node]] = {}
    for node, _ in nodes_in(plan.graph.block):
        call = host_call(node)
        if call and call.of.service == service:
            found.setdefault(plan.projection.placement.node[node.id], []).append(node)
    return found


def _check_places(plan: Plan, service: Service) -> None:
    found = users(plan, service)
    for place, nodes in found.items():
        many = plan.place(place).replicas > 1
        for node in nodes:
            call = host_call(node)
            if many and not (plan.free and call and only_gives(call)):
                chance = "in an order of chance" if not plan.free else "each something else"
                raise PlanError(
                    f"`{place}` has {plan.place(place).replicas} replicas, which would "
                    f"`{node.title}` {chance}: put it on a place that is there once, such as the "
                    f"learner's" + ("." if plan.free else ", or use lag=free.")
                )
    if len(found) > 1 and not plan.free:
        raise PlanError(
            f"{' and '.join(f'`{p}`' for p in found)} use the service that keeps the "
            f"{service.name}, and neither would wait for the other: put "
            f"{', '.join(dict.fromkeys(f'`{n.title}`' for ns in found.values() for n in ns))} on "
            f"one place, or use lag=free."
        )


def _check_shards(plan: Plan, service: Service) -> None:
    """Instance k fills shard k modulo their number: each shard must have as many instances."""
    shards = plan.serving.shards
    for place, node, _ in _gives(plan, service):
        replicas = plan.place(place).replicas
        if replicas % shards:
            empty = "of which some would stay empty" if replicas < shards else "not equally"
            raise PlanError(
                f"`{place}` has {replicas} replica{'s' * (replicas != 1)} that `{node.title}` into "
                f"{shards} shards of the {service.name}, {empty}: use {shards} or a multiple of "
                f"{shards} of `{place}`, or shards={math.gcd(replicas, shards)}."
            )


def _given(plan: Plan, service: Service) -> list[Shapes]:
    """The arguments of the calls that only give something, as one replica makes them."""
    found = []
    for place, node, call in _gives(plan, service):
        each = plan.graph.at(plan.envs_of(place) // plan.place(place).replicas)
        found.append(call.shapes([each.values[v] for v in node.ins]))
    return found


def _gives(plan: Plan, service: Service) -> Iterator[tuple[str, Node, HostCall]]:
    for place, nodes in users(plan, service).items():
        for node in nodes:
            call = host_call(node)
            if call and only_gives(call):
                yield place, node, call
