"""Graphs in which services keep parts of the state."""

from __future__ import annotations

from collections import Counter

from hocket.core.graph.host_calls import HostCall, host_call
from hocket.core.graph.tickets import check_tickets
from hocket.core.graph.trace import Graph, trace
from hocket.core.program.service import Served, parts
from hocket.errors import ContractError, PlanError


def served(graph: Graph) -> Graph:
    """Return the same step as a graph in which services keep as much of the state as they can.

    A step may use such a part only through the service's functions, or else it is refused. A
    strategy calls this for its plan:

        return Plan(served(graph), places=...)
    """
    if graph.served:
        return graph
    made = trace(graph.algorithm, graph.num_envs, exact=graph.exact, served=True)
    kept = [x.by for x in parts(made.state) if isinstance(x, Served)]
    algorithm = type(graph.algorithm).__name__
    if not kept:
        raise PlanError(
            f"{algorithm} has no replay that a service could keep. Make one in `init` with "
            f"`hocket.replay.memory.init`, or use another strategy, such as `actor_learner`."
        )
    if twice := [name for name, n in Counter(service.name for service in kept).items() if n > 1]:
        raise ContractError(
            f"the state of {algorithm} has two parts named `{twice[0]}`, which services could not "
            f"tell apart: give one of them another `name`."
        )
    check_tickets(made)
    return made


def writers(graph: Graph) -> tuple[str, ...]:
    """Return the names of the fragments that only write to a service.

    In a free plan, any replica may run them.
    """
    calls = [(node, host_call(node)) for node in graph.nodes]
    return tuple(node.title for node, call in calls if call and only_gives(call))


def only_gives(call: HostCall) -> bool:
    """Return True if a call writes to a service and reads nothing, like an insert into a replay."""
    return call.of.service is not None and call.of.changes and len(call.outs) == 1
