"""`hocket plan`, with its search for slices, and `hocket graph`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hocket.cli.flags import defaults_of, parse, split_word
from hocket.cluster import hardware
from hocket.cluster.rates import measured_rates
from hocket.core.plan.data import Plan
from hocket.core.plan.nodes import Rates
from hocket.core.plan.text import plan_text
from hocket.strategies import options_text, strategies
from hocket.training.loop import plan


@dataclass(frozen=True)
class Where:
    """Flags for the strategy and launcher to plan with."""

    distribute: str | None = None
    """The strategy: NAME or NAME:option=value,... (see `hocket strategies`). By default `anakin`,
    `sebulba` if the environments run on the host, or on a cluster `actor_learner`."""
    launch: str | None = None
    """How instances would run: as `threads` (the default), as `processes`, or by your own launcher,
    `file.py:NAME`."""


@dataclass(frozen=True)
class Planned(Where):
    """Flags for the strategy and launcher to plan with, and for a search for the best slices."""

    cluster: str | None = None
    """The machines to plan for: `hosts:FILE`, `ray` for a Ray cluster, or `loopback:2` to try it
    out on this machine. By default, the plan is for this machine alone."""
    ship: tuple[str, ...] = ()
    """The code that would be sent to the machines of a cluster: folders, packages or files. By
    default, the folders of your own modules that the algorithm uses."""
    svg: Path | None = None
    """The SVG file to save a drawing of the plan in; by default nothing is drawn."""
    search: bool = False
    """Measure which way to cut this machine's devices into slices is fastest: how many instances,
    how many environments per instance, and which share of the device each instance may use. Later
    runs with `--distribute sliced:search=true` use the fastest way."""
    instances: tuple[int, ...] | None = None
    """With --search: the numbers of instances per device to try; by default 1 2 4 8. The list must
    include 1."""
    envs: tuple[int, ...] | None = None
    """With --search: the numbers of environments per instance to try; by default 1, 4 and 16 times
    `num_envs`."""
    devices: int | None = None
    """With --search: how many devices to use; by default all."""
    seconds: float = 3.0
    """With --search: how many seconds to measure each configuration."""
    plot: Path | None = None
    """With --search: save a figure of the measurements in this .png, .svg or .pdf file."""


def plan_command(arguments: list[str]) -> None:
    """Print the plan of a run, or search for the best slices."""
    about = "Print what would run where, and which values would cross. Only --search runs anything."
    leave_memory()
    command = _parsed("plan", arguments, about, Planned())
    _check_flags(command.where)
    if command.where.search:
        _search(command)
        return
    made = _planned(command, command.where.cluster, command.where.ship)
    rates = _rates(made.launch.name) if made.launch.nodes else None
    print(plan_text(made, rates))
    if rates is None:
        here = hardware()
        devices = ", ".join(here["devices"])
        print(f"this machine: {devices}; {here['cores']} cores ({here['processor']})")
    if command.where.svg is not None:
        from hocket.cli.picture import draw_plan

        command.where.svg.parent.mkdir(parents=True, exist_ok=True)
        command.where.svg.write_text(draw_plan(made, rates))
        print(f"saved as {command.where.svg}")


def _rates(cluster: str) -> Rates:
    """Return the speed between the nodes of a cluster as last measured; empty if it never was."""
    measured = measured_rates(cluster).items()
    return {pair: (speed.round_trip / 2, speed.rate) for pair, speed in measured}


def _check_flags(where: Planned) -> None:
    """Refuse flags that would have no effect."""
    of_search = ("instances", "envs", "devices", "seconds", "plot")
    for name in ("distribute", "launch", "cluster", "ship", "svg") if where.search else of_search:
        if getattr(where, name) != getattr(Planned, name):
            raise ValueError(
                f"--{name} has no effect with --search, which measures slices: leave one out."
                if where.search
                else f"--{name} has no effect without --search: add --search, or leave it out."
            )


def _search(command: Any) -> None:
    from hocket.report.plot import check_figure
    from hocket.training.search import draw, search_here, table, told

    where = command.where
    if where.plot is not None:
        check_figure(where.plot)
        where.plot.parent.mkdir(parents=True, exist_ok=True)
        # The search takes minutes, so find out now whether the file can be written.
        where.plot.open("ab").close()
        if not where.plot.stat().st_size:
            where.plot.unlink()
    search = search_here(
        command.algorithm, instances=where.instances, envs=where.envs, devices=where.devices,
        seconds=where.seconds, tell=lambda score: print(told(score), flush=True),
    )  # fmt: skip
    print(f"\n{table(search.scores)}\nto use the best: --distribute sliced:search=true")
    if where.plot is not None:
        draw(search.scores, where.plot)
        print(f"saved as {where.plot}")


def graph_command(arguments: list[str]) -> None:
    """Print the parts (fragments) of an algorithm, and what flows between them."""
    about = "Print an algorithm's fragments and what flows between them."
    print(_planned(_parsed("graph", arguments, about, Where())).graph)


def _planned(command: Any, cluster: str | None = None, ship: tuple[str, ...] = ()) -> Plan:
    where = command.where
    return plan(
        command.algorithm, distribute=where.distribute, launch=where.launch, cluster=cluster,
        ship=ship,
    )  # fmt: skip


def _parsed(name: str, arguments: list[str], about: str, where: Where) -> Any:
    word, rest = split_word(arguments)
    defaults, _ = defaults_of(word, rest, name)
    about = f"{about}\n\n{strategies_text()}"
    return parse(name, word, rest, about, algorithm=defaults, where=where)


def strategies_text() -> str:
    """Return the strategies with their options, for a help text."""
    rows = [f"  {name}:{options_text(made)}" for name, made in strategies().items()]
    return "\n".join(["Strategies for --distribute, with all their options:", *rows])


def leave_memory() -> None:
    """Keep JAX from claiming most of the accelerator's memory, which this process does not need."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
