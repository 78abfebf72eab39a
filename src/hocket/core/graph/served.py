"""A graph whose state is kept by services where it can be, and what plans of it refuse."""

from __future__ import annotations

from collections import Counter

from hocket.core.graph.host_calls import HostCall, host_call
from hocket.core.graph.tickets import check_tickets
from hocket.core.graph.trace import Graph, trace
from hocket.core.program.service import Served, parts
from hocket.errors import ContractError, PlanError


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
    return tuple(node.title for node, call in calls if call and only_gives(call))


def only_gives(call: HostCall) -> bool:
    return call.of.service is not None and call.of.changes and len(call.outs) == 1
