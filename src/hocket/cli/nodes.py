"""`hocket devices --cluster`: the nodes of a cluster, and what is wrong with them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from hocket.cluster.rates import save_rates
from hocket.cluster.survey import alike_text, size_text
from hocket.runtime.launch import SURVEY_SECONDS, cluster_launcher
from hocket.runtime.launch.survey.machines import (
    Surveyed,
    accelerators_or_host,
    survey_nodes,
    unequal_processors,
)
from hocket.runtime.launch.survey.ways import Measured, measure
from hocket.system.text import bytes_text

MOST_WAYS = 20
"""The most ways between nodes to print. If there are more, these are the slowest."""


def list_nodes(name: str, *, check: bool, json: bool) -> None:
    """Print the nodes of a cluster. Exit with 1 if something is wrong with them."""
    launcher = cluster_launcher(name)
    nodes = launcher.nodes(SURVEY_SECONDS)
    surveyed = survey_nodes(launcher, nodes, SURVEY_SECONDS, slices=True)
    problems = [f"the node `{each.node}`: {x}" for each in surveyed for x in each.problems]
    answered = [each for each in surveyed if each.machine]
    measured = None
    if check:
        problems += [f"the node `{each.node}`: {x}" for each in answered for x in each.shortages]
        measured = measure(launcher, [each.node for each in answered], SURVEY_SECONDS)
        problems += measured.problems
        save_rates(launcher.launch.name, measured.rates)
    tell = _print_json if json else _print_text
    tell(launcher.launch.name, surveyed, measured, problems)
    if problems:
        sys.exit(1)


def _print_json(
    name: str, surveyed: Sequence[Surveyed], measured: Measured | None, problems: Sequence[str]
) -> None:
    nodes = [{"name": each.node, **each.machine} for each in surveyed]
    about: dict[str, Any] = {"cluster": name, "nodes": nodes}
    if measured:
        about["check"] = asdict(measured)
    print(json.dumps(about | {"problems": problems}, indent=2))


def _print_text(
    name: str, surveyed: Sequence[Surveyed], measured: Measured | None, problems: Sequence[str]
) -> None:
    answered = [each for each in surveyed if each.machine]
    print(f"{name}: {len(surveyed)} nodes\n")
    _print_table(["node", "cores", "memory", "devices", "processor"], map(_row, surveyed))
    for about, nodes in _by_versions(answered).items():
        print(f"\n{about}: {', '.join(nodes)}")
    devices = [
        {**device, "name": f"{each.node}/{device['name']}"}
        for each in answered
        for device in accelerators_or_host(each.machine["devices"])
    ]
    print(*alike_text(devices), sep="\n")
    if measured:
        _print_ways(measured)
    for note in unequal_processors(answered):
        print(f"\n{note}")
    if problems:
        print(f"\n{len(problems)} {'problem' if len(problems) == 1 else 'problems'}:")
        print(*(f"- {problem}" for problem in problems), sep="\n")
    elif measured:
        print("\nnothing is wrong; `hocket plan` knows these rates from now on")
    else:
        print("\nto try the network between them: add --check")


def _row(each: Surveyed) -> list[str]:
    if not (machine := each.machine):
        return [each.node, "-", "-", "-", "did not answer"]
    names: dict[str, list[str]] = {}
    for device in accelerators_or_host(machine["devices"]):
        names.setdefault(device["kind"], []).append(device["name"])
    devices = "; ".join(f"{', '.join(of)} ({kind})" for kind, of in names.items())
    cores = str(machine["cores"])
    return [each.node, cores, size_text(machine["memory"]), devices, machine["processor"]]


def _by_versions(surveyed: Iterable[Surveyed]) -> dict[str, list[str]]:
    """Return the nodes that have the same versions, by the text of these."""
    nodes: dict[str, list[str]] = {}
    for each in surveyed:
        versions = each.machine["versions"].items()
        text = ", ".join(f"{name} {version}" for name, version in versions if version)
        nodes.setdefault(text, []).append(each.node)
    return nodes


def _print_ways(measured: Measured) -> None:
    slowest = sorted(measured.rates, key=lambda rate: rate.rate)[:MOST_WAYS]
    rows = [
        [
            f"{rate.source} -> {rate.target}", f"{rate.round_trip * 1e3:.2f} ms",
            f"{bytes_text(rate.rate)}/s", str(rate.mtu or "unknown"),
        ]
        for rate in slowest
    ]  # fmt: skip
    here = [
        [f"here -> {node}", f"{seconds * 1e3:.2f} ms", "", ""]
        for node, seconds in measured.round_trips.items()
    ]
    print()
    _print_table(["way", "round trip", "rate", "MTU"], [*rows, *here])
    if more := len(measured.rates) - len(slowest):
        print(f"and {more} ways that are faster than these")
    if measured.clocks:
        offsets = (f"{node} {ahead * 1e3:+.1f} ms" for node, ahead in measured.clocks.items())
        print(f"clocks ahead of this machine's: {', '.join(offsets)}")


def _print_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = [heads, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(heads))]
    for row in table:
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
