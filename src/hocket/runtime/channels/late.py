"""Late values: arrays that are under way between two blocks of iterations, and their saved names.

Late values are the messages that late channels hold and, with lag=free, the samples that nobody has
learned from yet. The name of an array has four parts, as in `learner.params.bias/actor/0/0`: its
value, the place that receives it, the replica, and the position of its message, where 0 is the
oldest. It has no transfer number, because that depends on the plan, and a run may resume under
another plan.
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
"""The prefix of the names under which a sample is saved: each of its arrays as
`sample-MAKER-NUMBER-ARRAY`, and its age as `sample-MAKER-NUMBER-age`."""


def sample_name(maker: int, number: int, name: str) -> str:
    """Return the name under which one array of a sample, or the sample's age, is saved.

    `name` is the name of the array, or `age`. `maker` is the index of the instance that made the
    sample. `number` counts the saved samples of this maker, from 0 for the oldest.
    """
    return f"{SAMPLE}{maker}-{number}-{name}"


def late_links(plan: Plan) -> list[Link]:
    """Return the links of all channels with a lag."""
    return [link for link in links(plan) if plan.channel_of(link.transfer).lag]


def late_names(plan: Plan) -> dict[LinkKey, list[list[str]]]:
    """Return the names of the arrays in each late message of each link, oldest message first."""
    late = late_links(plan)
    lags = {link.key: range(plan.channel_of(link.transfer).lag) for link in late}
    names = array_names(plan, late)
    return {key: [[f"{name}/{k}" for name in names[key]] for k in lags[key]] for key in lags}


def late_specs(plan: Plan) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shape and dtype of each array of each late message, by its saved name."""
    names = late_names(plan)
    return {
        name: spec
        for link in late_links(plan)
        for message in names[link.key]
        for name, spec in zip(message, link.arrays, strict=True)
    }


def array_names(plan: Plan, chosen: Iterable[Link]) -> dict[LinkKey, list[str]]:
    """Return, for each of these links, a unique name for every array of its messages."""
    values = value_names(plan.graph)
    return {
        link.key: [
            f"{values[v]}/{link.transfer.target}/{max(link.source, link.target)}"
            for v in link.values
        ]
        for link in chosen
    }


def value_names(graph: Graph) -> list[str]:
    """Return a unique name for every value of a graph: its `name` without the source line.

    If several values have the same name, all but the first get a number. All plans of an algorithm
    have the same graph, and so the same names.
    """
    names, counts = list[str](), Counter[str]()
    for value in graph.values:
        name = re.sub(r"[^\w.]+", "-", value.name.partition(" at ")[0]).strip("-")
        names.append(f"{name}~{counts[name]}" if counts[name] else name)
        counts[name] += 1
    return names


def renamed(plan: Plan, late: Mapping[str, Any]) -> dict[str, Any]:
    """Return saved late values under today's names, whatever version of hocket saved them."""
    table = _earlier_names(plan)
    return {table.get(name, name): x for name, x in late.items()}


def _earlier_names(plan: Plan) -> dict[str, str]:
    """Return the present name of each late value, by the name that earlier versions saved it under.

    The earlier names contained numbers of transfers, which depend on the plan.
    """
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
