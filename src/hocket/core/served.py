"""A graph whose state is kept by services where it can be, and what plans of it refuse."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import jax

from hocket.core.graph import Block, Graph, Loop, Node, trace
from hocket.core.host import HostCall, functions, host_call
from hocket.core.service import CARRIERS, Served, Service, services
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
    kept = [x.by for x in _parts(made) if isinstance(x, Served)]
    name = type(graph.algorithm).__name__
    if not kept:
        raise PlanError(
            f"{name} has no replay that a service could keep: there is one where `init` makes it "
            f"with `hocket.replay.init`. Use another strategy, such as `actor_learner`."
        )
    if twice := [service.name for service, n in Counter(kept).items() if n > 1]:
        raise ContractError(
            f"{name} has two of `{twice[0]}`, and a service keeps each by its name: give one of "
            f"them another `name`."
        )
    _check_tickets(made)
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
        _check_places(plan, service)


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


def _only_gives(call: HostCall) -> bool:
    return call.of.service is not None and call.of.changes and len(call.outs) == 1


def _check_tickets(graph: Graph) -> None:
    """Refuse a step in which anything but a service's own functions reads what it keeps."""
    pairs = zip(graph.block.inputs, _parts(graph), strict=True)
    tickets = {v: x.by for v, x in pairs if isinstance(x, Served)}
    found = _follow(graph, graph.block, dict(tickets))
    for v, out in zip(graph.block.inputs, graph.block.outputs, strict=False):
        if v in tickets and found.get(out) != tickets[v]:
            raise ContractError(
                f"`step` returns something else as `{graph.values[v].name}` of the state than what "
                f"the functions of the {tickets[v].name} gave it."
            )


def _follow(graph: Graph, block: Block, known: dict[int, Service]) -> dict[int, Service]:
    """All values of a block that are tickets, given those that come in."""
    for node in block.nodes:
        read = {known[v] for v in node.ins if v in known}
        if isinstance(node, Loop):
            inside = {i: known[o] for o, i in zip(node.ins, node.body.inputs, strict=True)
                      if o in known}  # fmt: skip
            inner = _follow(graph, node.body, inside)
            carried = zip(node.body.outputs, node.outs, strict=True)
            known |= {o: inner[i] for i, o in list(carried)[: node.num_carry] if i in inner}
        elif read:
            known |= _given(node, read, known)
    return known


def _given(node: Node, read: set[Service], known: dict[int, Service]) -> dict[int, Service]:
    """The tickets that a node gives, which reads some."""
    call, (service, *_) = host_call(node), read
    if call is None or {call.of.service} != read:
        own = any(of.service in read for of in functions(node))
        why = "does more than that: take the rest out of it" if own else "is none of these"
        raise ContractError(
            f"a service keeps the {service.name} under this plan, so only fragments that call its "
            f"functions, and nothing else, may read it; `{node.title}` at {node.where} {why}."
        )
    first = [v for v, source in zip(node.outs, call.outs, strict=True) if source == ("made", 0)]
    passed = {v: known[node.ins[k]] for v, (kind, k) in zip(node.outs, call.outs, strict=True)
              if kind == "in" and node.ins[k] in known}  # fmt: skip
    return {**passed, **(dict.fromkeys(first, service) if call.of.changes else {})}


def _parts(graph: Graph) -> list[object]:
    return jax.tree.leaves(graph.state, is_leaf=lambda x: isinstance(x, Served))
