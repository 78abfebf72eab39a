"""A graph whose state is kept by services where it can be, and what plans of it refuse."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hocket.core.graph import Graph, Node, trace
from hocket.core.host import HostCall, host_call
from hocket.core.service import CARRIERS, Served, Service, Shapes, parts, services
from hocket.core.tickets import check_tickets
from hocket.errors import ContractError, PlanError, unknown

if TYPE_CHECKING:
    from hocket.core.plan import Plan


def served(graph: Graph) -> Graph:
    """The same step where services keep what they can of the state; refused if others touch it.

    A strategy asks for it:

        return Plan(served(graph), places=...)
    """
    if graph.served:
        return graph
    made = trace(graph.algorithm, graph.num_envs, exact=graph.exact, served=True)
    kept = [x.by for x in parts(made.state) if isinstance(x, Served)]
    algorithm = type(graph.algorithm).__name__
    if not kept:
        raise PlanError(
            f"{algorithm} has no replay that a service could keep: there is one where `init` makes "
            f"it with `hocket.replay.memory.init`. Use another strategy, such as `actor_learner`."
        )
    if twice := [name for name, n in Counter(service.name for service in kept).items() if n > 1]:
        raise ContractError(
            f"{algorithm} has two of `{twice[0]}`, and a service keeps each by its name: give one "
            f"of them another `name`."
        )
    check_tickets(made)
    return made


def writers(graph: Graph) -> tuple[str, ...]:
    """The fragments that only give something to a service: replicas may do so, each for itself."""
    calls = [(node, host_call(node)) for node in graph.nodes]
    return tuple(node.title for node, call in calls if call and _only_gives(call))


def check_services(plan: Plan) -> None:
    """Refuse services that are asked from places whose order is a matter of chance."""
    how = plan.serving
    if how.carrier not in CARRIERS:
        raise PlanError(unknown("carrier", how.carrier, CARRIERS))
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
    for node, _ in plan.nodes():
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
            if many and not (plan.free and call and _only_gives(call)):
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
            if call and _only_gives(call):
                yield place, node, call


def _only_gives(call: HostCall) -> bool:
    return call.of.service is not None and call.of.changes and len(call.outs) == 1
