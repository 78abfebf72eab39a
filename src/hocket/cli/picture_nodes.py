"""The drawing of a plan's nodes: who runs where, and what crosses between nodes.

Equal nodes are one stack of cards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hocket.core.plan.data import Plan
from hocket.core.plan.nodes import Connection, NodeGroup, Rates, busiest, connections, node_groups
from hocket.core.plan.text_nodes import time_text
from hocket.report.diagram import Drawing, FlowArrow, PlaceBox
from hocket.system.text import bytes_text, names_text

MOST_STACKS = 5
"""The most stacks of equal nodes that are drawn. The node with the most traffic is one of them."""


def nodes_drawing(plan: Plan, rates: Rates | None = None) -> Drawing:
    """Return the drawing of a plan's nodes.

    With `rates`, the measured speed between nodes, the arrows say how long messages are under way.
    """
    hub, groups = busiest(plan), node_groups(plan)
    groups.sort(key=lambda group: (not hub or hub[0] not in group.nodes, -len(group.nodes)))
    drawn, count = groups[:MOST_STACKS], sum(len(group.nodes) for group in groups)
    between, within = connections(plan)
    boxes = {group: _stack(plan, group, between, within) for group in drawn}
    of_node = {node: box for group, box in boxes.items() for node in group.nodes}
    missing = count - len(of_node)
    note = f", without {missing} nodes that run other numbers of instances" if missing else ""
    return Drawing(
        title=f"{count} node{'s' * (count != 1)}",
        subtitle=(plan.launch.name or "a cluster without a launcher") + note,
        boxes=tuple(boxes.values()),
        arrows=tuple(_arrows(between, of_node, rates)),
    )


def _stack(
    plan: Plan, group: NodeGroup, between: Sequence[Connection], within: Sequence[Connection]
) -> PlaceBox:
    """Return the box of equal nodes: their instances, and what stays within one node."""
    inside = [x.each.nbytes for x in within if x.pairs[0][0] in group.nodes]
    others = [x for x in between if set(x.pairs[0]) <= set(group.nodes)]
    of_each = " each" if len(group.nodes) > 1 else ""
    return PlaceBox(
        name=names_text(group.nodes),
        pills=tuple(
            (f"{place} x{n}" if n > 1 else place, _role(plan, place))
            for place, n in group.instances
        ),
        facts=((f"stays within{of_each}", bytes_text(max(inside))),) if inside else (),
        replicas=len(group.nodes),
        loop=f"between any two: {_amount(others)}" if others else "",
    )


def _role(plan: Plan, place: str) -> str:
    """Return the role of a place's first fragment, which gives the place its color."""
    return next(label.role for label in plan.graph.labels if plan.where[label.name] == place)


def _arrows(
    between: Sequence[Connection], of_node: Mapping[str, PlaceBox], rates: Rates | None
) -> Iterator[FlowArrow]:
    """Yield an arrow from each stack of nodes to each other to which something crosses."""
    by_ends: dict[tuple[str, str], list[Connection]] = {}
    for connection in between:
        ends = [of_node.get(node) for node in connection.pairs[0]]
        if all(ends) and ends[0] != ends[1]:
            source, target = (box.name for box in ends if box)
            by_ends.setdefault((source, target), []).append(connection)
    for (source, target), all_of_it in by_ends.items():
        nbytes = max(x.each.nbytes for x in all_of_it)
        each = (
            ("each of " + f"{n:,} pairs",)
            if (n := sum(len(x.pairs) for x in all_of_it)) > 1
            else ()
        )
        times = () if rates is None else (time_text(all_of_it[0], rates),)
        yield FlowArrow(source, target, nbytes, _amount(all_of_it), (*each, *times))


def _amount(connections: Sequence[Connection]) -> str:
    """Return what crosses between two nodes, or the most if not all pairs are alike."""
    most = max(connections, key=lambda x: x.each.nbytes).each
    up_to = "up to " if len(connections) > 1 else ""
    count = f"{most.messages:,} message{'s' * (most.messages != 1)}"
    return f"{up_to}{bytes_text(most.nbytes)}, {count}"
