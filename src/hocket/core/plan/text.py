"""A plan as text for people: what runs where, in how much memory, and what crosses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from hocket.core.graph.host_calls import host_call
from hocket.core.graph.trace import Graph, Node
from hocket.core.plan.checks_services import users
from hocket.core.plan.memory import footprint
from hocket.core.plan.nodes import Rates
from hocket.core.plan.text_nodes import devices_text, node_lines
from hocket.core.plan.traffic import Flow, averages, flows
from hocket.core.program.service import services
from hocket.core.projection.host_loops import calls_inside, host_nodes
from hocket.system.text import bytes_text

if TYPE_CHECKING:
    from hocket.core.plan.data import Place, Plan


def plan_text(plan: Plan, rates: Rates | None = None) -> str:
    """Return the graph, then lines for each place, host function, service, channel and node.

    With `rates`, the measured speed between nodes, say how long messages are under way.
    """
    host = (*_host_lines(plan), *_service_lines(plan))
    crossing = (*_traffic_lines(plan), *node_lines(plan, rates))
    return "\n".join((*_graph_lines(plan), *_place_lines(plan), *host, *crossing, *plan.notes))


def _graph_lines(plan: Plan) -> Iterator[str]:
    yield str(plan.graph)
    if plan.free and plan.free.shares > 1:
        yield (
            f"an iteration is of any {plan.iteration.num_envs} environments, one in "
            f"{plan.free.shares}: {plan.iteration.env_steps:,} environment steps"
        )
    yield ""


def _place_lines(plan: Plan) -> Iterator[str]:
    memory = footprint(plan)
    for place in plan.places:
        yield _place_line(plan, place)
        each = " of each" if plan.instances(place.name) > 1 else ""
        yield f"    memory{each}: {memory[place.name]}"
    if not plan.launch.one_process:
        flags = f" with {plan.compiler_flags}" if plan.compiler_flags else ""
        name = f"launched as {plan.launch.name}"
        yield (name if plan.launch.name else "not to be run: the cluster has no launcher") + flags
    if plan.parts > 1:
        yield f"loops that cross places run in {plan.parts} parts of the environments"


def _traffic_lines(plan: Plan) -> Iterator[str]:
    crossing = flows(plan)
    for flow in crossing:
        yield from _flow_lines(plan, flow)
    for name, (calls, nbytes) in sorted(averages(plan).items()):
        yield (
            f"{name} averages: {bytes_text(nbytes)} an iteration of each replica in "
            f"{calls} message{'s' * (calls != 1)}"
        )
    if not crossing and not plan.averaging:
        yield "nothing crosses"


def _place_line(plan: Plan, place: Place) -> str:
    runs = ", ".join(n for n, p in plan.where.items() if p == place.name)
    times = f" x{place.replicas}" if place.replicas > 1 else ""
    together = " (one program)" if place.name in plan.grouped else ""
    backend = f" with {place.backend}" if place.backend != "jax" else ""
    devices = devices_text(place.on) if plan.launch.nodes else ", ".join(map(str, place.on))
    on = f"  on {devices}" if place.on else ""
    return f"{place.name}{times}{together}: {runs}{backend}{on}"


def _host_lines(plan: Plan) -> Iterator[str]:
    """Yield a line for each host function: how it is called, and the bytes of a call."""
    fused = len(plan.places) == 1 and plan.launch.one_process and len(plan.places[0].on) <= 1
    within = set(_called_within(plan))
    for node, times in plan.graph.block.walk():
        call = host_call(node)
        if call is None or call.of.service is not None:
            continue
        how = (
            "the compiled program stops and calls back" if fused
            else "called by the compiled program" if node.id in within
            else "called between compiled programs"
        )  # fmt: skip
        yield (
            f"{call.of.name} runs on the host: {times} calls an iteration ({how}), each with "
            f"{_there_and_back(plan.graph, node, 1)}"
        )


def _there_and_back(graph: Graph, node: Node, times: int) -> str:
    """Return the bytes of `times` calls as text, such as `1.5 KiB there and 512 B back`."""
    there, back = (
        bytes_text(times * sum(graph.values[v].nbytes for v in vs)) for vs in (node.ins, node.outs)
    )
    return f"{there} there and {back} back"


def _service_lines(plan: Plan) -> Iterator[str]:
    """Yield lines for each service: what it keeps, which places call it, and the calls' bytes."""
    often = {node.id: times for node, times in plan.graph.block.walk()}
    for service in services(plan.graph.state):
        yield service.about(plan.serving)
        for place, calls in users(plan, service).items():
            for node, _ in calls:
                times = often[node.id]
                yield (
                    f"    {place} calls `{node.title}` {times} time{'s' * (times != 1)} an "
                    f"iteration: {_there_and_back(plan.iteration, node, times)}"
                )


def _called_within(plan: Plan) -> Iterator[int]:
    """Yield the nodes whose host functions are called from inside compiled CPU programs."""
    for place in plan.places:
        on_host = all(device.is_host for device in place.on)
        if place.name in plan.grouped or not on_host or not 1 <= len(place.on) <= place.replicas:
            continue
        code = plan.projection.programs[place.name]
        if calls_inside(plan.graph, code, plan.cut_loops):
            yield from host_nodes(code)


def _flow_lines(plan: Plan, flow: Flow) -> Iterator[str]:
    channel = plan.channel(flow.source, flow.target)
    late = f", {channel.lag} iteration{'s' * (channel.lag != 1)} late" if channel.lag else ""
    free = plan.free
    if free and (flow.source, flow.target) == (free.learner, free.maker):
        late = f", free: the newest, for samples at most {free.max_age} iterations old"
    elif free and (flow.target, flow.source) == (free.learner, free.maker) and free.makers > 1:
        many = f", {free.batch} samples at a time" if free.batch > 1 else ""
        late = f", from any of {free.makers}{many}"
    slow = f", {channel.delay * 1e3:g} ms of delay each" if channel.delay else ""
    room = f", room for {channel.capacity}" if channel.capacity > 1 else ""
    yield (
        f"{flow.source} -> {flow.target}: {bytes_text(flow.nbytes)} an iteration in "
        f"{flow.messages} message{'s' * (flow.messages != 1)}{late}{slow}{room}"
    )
    yield from (f"    {name}" for name in shortened(flow.values))


def shortened(names: Iterable[str]) -> list[str]:
    """Return the names, with one entry for all arrays of a tree: `learner.params (12 arrays)`."""
    heads = (
        ".".join(name.split(".")[:2]) if "`" not in name else name.partition(" of ")[2]
        for name in names
    )
    return [head + (f" ({n} arrays)" if n > 1 else "") for head, n in Counter(heads).items()]
