"""The checks that a plan can run its services, and that their calls come in a fixed order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hocket.core.graph.host_calls import HostCall, host_call
from hocket.core.graph.served import only_gives
from hocket.core.graph.trace import Node
from hocket.core.program.service import Service, Shapes, services
from hocket.errors import PlanError

if TYPE_CHECKING:
    from hocket.core.plan.data import Plan


def check_services(plan: Plan) -> None:
    """Refuse services that cannot be divided, or whose calls come in no fixed order."""
    how = plan.serving
    if how.shards < 1 or how.prefetch < 0:
        raise PlanError(
            f"a service needs at least 1 shard, and prefetch must be at least 0: found "
            f"shards={how.shards} and prefetch={how.prefetch}."
        )
    if not plan.graph.served:
        return
    if not plan.free and (how.shards > 1 or how.prefetch):
        what = f"shards={how.shards}" if how.shards > 1 else f"prefetch={how.prefetch}"
        raise PlanError(
            f"with {what} a service draws different rows than one program would: use "
            f"lag=free, or leave out {what}."
        )
    for service in services(plan.graph.state):
        service.check(how, _given(plan, service) if how.shards > 1 else ())
        _check_places(plan, service)
        _check_shards(plan, service)


def users(plan: Plan, service: Service) -> dict[str, list[tuple[Node, HostCall]]]:
    """Return, for each place, its nodes that call functions of a service, and their calls."""
    calls: dict[str, list[tuple[Node, HostCall]]] = {}
    for node, _ in plan.graph.block.walk():
        call = host_call(node)
        if call and call.of.service == service:
            calls.setdefault(plan.projection.placement.node[node.id], []).append((node, call))
    return calls


def _check_places(plan: Plan, service: Service) -> None:
    by_place = users(plan, service)
    for place, calls in by_place.items():
        many = plan.place(place).replicas > 1
        for node, call in calls:
            if many and not (plan.free and only_gives(call)):
                trouble = "each get another result" if plan.free else "have no fixed order"
                raise PlanError(
                    f"`{place}` has {plan.place(place).replicas} replicas, whose calls of "
                    f"`{node.title}` would {trouble}: put that on a place with one replica, such "
                    f"as the learner's" + (", or use lag=free." if only_gives(call) else ".")
                )
    if len(by_place) > 1 and not plan.free:
        titles = dict.fromkeys(f"`{n.title}`" for calls in by_place.values() for n, _ in calls)
        raise PlanError(
            f"{' and '.join(f'`{place}`' for place in by_place)} use the service that keeps the "
            f"{service.name}, and neither would wait for the other: put {', '.join(titles)} on one "
            f"place, or use lag=free."
        )


def _check_shards(plan: Plan, service: Service) -> None:
    """Refuse replicas that would fill the shards unequally: replica k fills shard k % shards."""
    shards = plan.serving.shards
    for place, node, _ in _gives(plan, service):
        replicas = plan.place(place).replicas
        if replicas % shards:
            unequal = "leave some empty" if replicas < shards else "fill them unequally"
            raise PlanError(
                f"`{place}` fills the {shards} shards of the {service.name} with `{node.title}`. "
                f"Its {replicas} replica{'s' * (replicas != 1)} would {unequal}: the number of "
                f"replicas must be a multiple of shards={shards}. Use {shards} replicas, or "
                f"shards={math.gcd(replicas, shards)}."
            )


def _given(plan: Plan, service: Service) -> list[Shapes]:
    """Return the shapes of one replica's arguments, for each call that only writes to a service."""
    shapes = []
    for place, node, call in _gives(plan, service):
        each = plan.graph.at(plan.envs_of(place) // plan.place(place).replicas)
        shapes.append(call.shapes([each.values[v] for v in node.ins]))
    return shapes


def _gives(plan: Plan, service: Service) -> Iterator[tuple[str, Node, HostCall]]:
    """Yield the place, the node and the call for each call that only writes to a service."""
    for place, calls in users(plan, service).items():
        yield from ((place, node, call) for node, call in calls if only_gives(call))
