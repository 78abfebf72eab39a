"""The nodes of a plan as text: who runs where, and what crosses between nodes. Equal nodes share
a line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from hocket.core.plan.device_id import DeviceId
from hocket.core.plan.nodes import (
    Connection,
    NodeGroup,
    Rates,
    busiest,
    connections,
    ends_of,
    node_groups,
    seconds_of,
)
from hocket.system.text import bytes_text, names_text, seconds_text

if TYPE_CHECKING:
    from hocket.core.plan.data import Plan

MOST_LINES = 12
"""The most lines of a table. The connections with the fewest bytes are summed up in its last."""
NOT_MEASURED = "not measured"


def node_lines(plan: Plan, rates: Rates | None = None) -> Iterator[str]:
    """Yield who runs on which node, and a table of what crosses between nodes in an iteration.

    With `rates`, the measured speed between nodes, the table says how long it is under way.
    """
    if not plan.launch.nodes:
        return
    groups = node_groups(plan)
    count = sum(len(group.nodes) for group in groups)
    yield f"on {count} node{'s' * (count != 1)}:"
    for group in groups:
        each = " each" if len(group.nodes) > 1 else ""
        yield f"    {names_text(group.nodes)}: {instances_text(group)}{each}"
    if not plan.free:
        yield from _crossing_lines(plan, rates)


def instances_text(group: NodeGroup) -> str:
    """Return the instances on each node of a group: `actor x4, learner`."""
    return ", ".join(place + (f" x{n}" if n > 1 else "") for place, n in group.instances)


def _crossing_lines(plan: Plan, rates: Rates | None) -> Iterator[str]:
    between, within = connections(plan)
    averaged = " (averages: if each replica averages a part)" if plan.averaging else ""
    if between:
        yield f"between nodes, in an iteration{averaged}:"
        yield from _table(between, rates)
        if (most := busiest(plan)) and len({n for x in between for p in x.pairs for n in p}) > 2:
            node, received, sent = most
            yield f"    most at {node}: {bytes_text(received)} in, {bytes_text(sent)} out"
    else:
        yield "nothing crosses between nodes"
    if within:
        yield "within nodes, in an iteration:"
        yield from _table(within, None)


def _table(rows: Sequence[Connection], rates: Rates | None) -> Iterator[str]:
    shown = rows if len(rows) <= MOST_LINES else rows[: MOST_LINES - 1]
    names = [pairs_text(row) for row in shown]
    width = max(map(len, names))
    for name, row in zip(names, shown, strict=True):
        each, count = row.each, row.each.messages
        cells = f"{bytes_text(each.nbytes):>10}  {count:>6,} message{'s' * (count != 1):<1}"
        time = "" if rates is None else f"  {time_text(row, rates)}"
        yield f"    {name:<{width}}  {cells}{time}".rstrip()
    if rest := rows[len(shown) :]:
        nbytes = sum(row.each.nbytes * len(row.pairs) for row in rest)
        count = sum(len(row.pairs) for row in rest)
        yield f"    {f'{count} more, in all':<{width}}  {bytes_text(nbytes):>10}"


def pairs_text(connection: Connection) -> str:
    """Return which nodes a connection joins: `n0 to n6 -> n7, each`."""
    count, (source, target) = len(connection.pairs), connection.pairs[0]
    many = ", each" if count > 1 else ""
    if source == target:
        return names_text(node for node, _ in connection.pairs) + many
    if (ends := ends_of(connection)) is None:
        return f"{count} pairs, such as {source} -> {target}{many}"
    sources, targets = ends
    if len(sources) > 1 and set(sources) == set(targets):
        return f"between any two of {names_text(sources)}, each way"
    return f"{names_text(sources)} -> {names_text(targets)}{many}"


def time_text(connection: Connection, rates: Rates) -> str:
    """Return how long a connection's messages are under way, or that nobody measured it."""
    seconds = seconds_of(connection, rates)
    if not seconds:
        return NOT_MEASURED
    low, high = seconds_text(min(seconds)), seconds_text(max(seconds))
    text = low if low == high else f"{low} to {high}"
    missing = len(connection.pairs) - len(seconds)
    return f"{text}, {missing} of {len(connection.pairs)} {NOT_MEASURED}" if missing else text


def devices_text(on: Iterable[DeviceId]) -> str:
    """Return devices as text, in which equal nodes are one: `n0 to n7: 8 each (cpu:0)`."""
    by_node: dict[str, Counter[DeviceId]] = {}
    for device in on:
        by_node.setdefault(device.node, Counter())[device] += 1
    alike: dict[tuple[tuple[DeviceId, int], ...], list[str]] = {}
    for node, counts in by_node.items():
        equal = tuple((replace(device, node=""), n) for device, n in counts.items())
        alike.setdefault(equal, []).append(node)
    texts: list[str] = []
    for counts, nodes in alike.items():
        if len(nodes) < 3 and len({n for _, n in counts}) == 1:
            texts += [_run_text(by_node[node].items()) for node in nodes]
        else:
            texts.append(_devices_of(nodes, counts))
    return ", ".join(texts)


def _run_text(counts: Iterable[tuple[DeviceId, int]]) -> str:
    """Return devices that all occur equally often: `gpu:0 to gpu:3 x2`."""
    devices, times = zip(*counts, strict=True)
    return names_text(map(str, devices)) + (f" x{times[0]}" if times[0] > 1 else "")


def _devices_of(nodes: Sequence[str], counts: Sequence[tuple[DeviceId, int]]) -> str:
    """Return the devices on equal nodes, given how often each device occurs on one of them."""
    each = " each" if len(nodes) > 1 else ""
    runs = (_run_text(run) for _, run in groupby(counts, key=lambda x: x[1]))
    devices = ", ".join(runs) if len(counts) > 1 else str(counts[0][0])
    return f"{names_text(nodes)}: {sum(n for _, n in counts)}{each} ({devices})"
