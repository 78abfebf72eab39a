"""What is on its way between two blocks of iterations, and the names by which it is saved.

Late channels hold messages, and where nobody waits there are samples that nobody has learned from.
Each array goes by its value, the place that receives it and the replica that it is of, whatever
numbers the transfers of the plan have: `learner.params.bias/actor/0`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import jax

from hocket.core.graph.trace import Graph
from hocket.core.plan.data import Plan
from hocket.runtime.channels.links import Link, LinkKey, links

SAMPLE = "sample-"
"""The names of samples begin so: `sample-MAKER-NUMBER-` and `age`, or the name of an array."""


def sample_name(maker: int, number: int, name: str) -> str:
    """The name of an array, or the age, of one of the samples of a maker, the oldest first."""
    return f"{SAMPLE}{maker}-{number}-{name}"


def late_links(plan: Plan) -> list[Link]:
    """The links of late channels."""
    return [link for link in links(plan) if plan.channel_of(link.transfer).lag]


def late_names(plan: Plan) -> dict[LinkKey, list[list[str]]]:
    """For every late link, the arrays of each message on its way, the oldest message first."""
    late = late_links(plan)
    lags = {link.key: range(plan.channel_of(link.transfer).lag) for link in late}
    names = array_names(plan, late)
    return {key: [[f"{name}/{k}" for name in names[key]] for k in lags[key]] for key in lags}


def late_specs(plan: Plan) -> dict[str, jax.ShapeDtypeStruct]:
    """All that is on its way between two blocks of a plan with late channels."""
    names = late_names(plan)
    pairs = ((link, message) for link in late_links(plan) for message in names[link.key])
    return {
        name: spec
        for link, message in pairs
        for name, spec in zip(message, link.arrays, strict=True)
    }


def array_names(plan: Plan, chosen: Iterable[Link]) -> dict[LinkKey, list[str]]:
    """For each of these links, a name for every array of a message, unlike any other's."""
    values = value_names(plan.graph)
    return {
        link.key: [
            f"{values[v]}/{link.transfer.target}/{max(link.source, link.target)}"
            for v in link.values
        ]
        for link in chosen
    }


def value_names(graph: Graph) -> list[str]:
    """A name for every value of a graph: its own without lines of source code, counted if need be.

    Every plan of an algorithm has the same graph, so every plan has the same names.
    """
    names, counts = list[str](), Counter[str]()
    for value in graph.values:
        name = re.sub(r"[^\w.]+", "-", value.name.partition(" at ")[0]).strip("-")
        names.append(f"{name}~{counts[name]}" if counts[name] else name)
        counts[name] += 1
    return names


def renamed(plan: Plan, late: Mapping[str, Any]) -> dict[str, Any]:
    """What was saved, by the names that it has now."""
    table = _earlier_names(plan)
    return {table.get(name, name): x for name, x in late.items()}


def _earlier_names(plan: Plan) -> dict[str, str]:
    """The names of today by those of before, which had the numbers of a transfer and its ends."""
    every, late, table = list(links(plan)), late_names(plan), dict[str, str]()
    names = array_names(plan, every)
    for link in every:
        transfer, source, target = link.key
        for k, message in enumerate(late.get(link.key, ())):
            head = f"{transfer}-{source}-{target}-{k}"
            table |= {f"{head}-{j}": name for j, name in enumerate(message)}
        if plan.free and plan.free.is_sample(link.transfer):
            table |= {
                sample_name(maker, k, f"{transfer}-{source}-{j}"): sample_name(maker, k, name)
                for maker in range(plan.free.makers)
                for k in range(plan.free.window)
                for j, name in enumerate(names[link.key])
            }
    return table
