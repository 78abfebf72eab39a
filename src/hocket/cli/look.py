"""The commands that look before anything runs: `plan`, its search for slices, and `graph`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hocket.cli.flags import defaults_of, parse, split_word
from hocket.cluster import hardware
from hocket.core.plan.data import Plan
from hocket.strategies import options_text, strategies
from hocket.training.loop import plan


@dataclass(frozen=True)
class Where:
    """Where it would run."""

    distribute: str | None = None
    """The strategy: NAME or NAME:option=value,... (`hocket strategies`). By default `anakin`, or
    `sebulba` if the environments run on the host."""
    launch: str | None = None
    """How its instances would run: `threads` (the default), `processes`, or `file.py:NAME`."""


@dataclass(frozen=True)
class Drawn(Where):
    """Where it would run, and a picture of it."""

    svg: Path | None = None
    """Draw the plan as well, into this file."""
    search: bool = False
    """Measure how this machine's devices are best cut into slices: how many instances, how many
    environments of each, at which share. What is found is kept for `sliced:search=true`."""
    instances: tuple[int, ...] | None = None
    """To search: numbers of instances on a device, 1 among them; by default 1 2 4 8."""
    envs: tuple[int, ...] | None = None
    """To search: environments of an instance; by default 1, 4 and 16 times `num_envs`."""
    devices: int | None = None
    """To search: only so many of the devices."""
    seconds: float = 3.0
    """To search: how long each point is measured."""
    plot: Path | None = None
    """To search: draw what was measured into this file."""


TO_SEARCH = ("instances", "envs", "devices", "seconds", "plot")


def plan_command(arguments: list[str]) -> None:
    """Print who would run where and what would cross; with `--search`, find out what is best."""
    about = "Print who would run where; starts nothing, unless it is to search."
    leave_memory()
    command = _what("plan", arguments, about, Drawn())
    _check_flags(command.where)
    if command.where.search:
        _search(command)
        return
    made, here = _planned(command), hardware()
    print(made)
    devices = ", ".join(here["devices"])
    print(f"this machine: {devices}; {here['cores']} cores ({here['processor']})")
    if command.where.svg is not None:
        from hocket.cli.picture import draw_plan

        command.where.svg.parent.mkdir(parents=True, exist_ok=True)
        command.where.svg.write_text(draw_plan(made))
        print(f"drawn in {command.where.svg}")


def _check_flags(where: Drawn) -> None:
    """Refuse flags that would do nothing."""
    idle = ("distribute", "launch", "svg") if where.search else TO_SEARCH
    for name in idle:
        if getattr(where, name) != getattr(Drawn, name):
            raise ValueError(
                f"--{name} has no effect with --search, which measures slices: leave one out."
                if where.search
                else f"--{name} has no effect without --search: add that, or leave it out."
            )


def _search(command: Any) -> None:
    from hocket.report.plot import check_figure
    from hocket.training.search import draw, search_here, table, told

    where = command.where
    if where.plot is not None:
        check_figure(where.plot)
        where.plot.parent.mkdir(parents=True, exist_ok=True)
        where.plot.open("ab").close()  # whoever cannot write there is told now
        if not where.plot.stat().st_size:
            where.plot.unlink()
    outcome = search_here(
        command.algorithm, instances=where.instances, envs=where.envs, devices=where.devices,
        seconds=where.seconds, tell=lambda score: print(told(score), flush=True),
    )  # fmt: skip
    print(f"\n{table(outcome.scores)}\nkept for: --distribute sliced:search=true")
    if where.plot is not None:
        draw(outcome.scores, where.plot)
        print(f"drawn in {where.plot}")


def graph_command(arguments: list[str]) -> None:
    """Print the fragments of an algorithm."""
    command = _what("graph", arguments, "Print the fragments and what flows between them.", Where())
    print(_planned(command).graph)


def _planned(command: Any) -> Plan:
    where = command.where
    return plan(command.algorithm, distribute=where.distribute, launch=where.launch)


def _what(name: str, arguments: list[str], about: str, where: Where) -> Any:
    word, rest = split_word(arguments)
    defaults, _ = defaults_of(word, rest, name)
    about = f"{about}\n\n{strategies_text()}"
    return parse(name, word, rest, about, algorithm=defaults, where=where)


def strategies_text() -> str:
    """Every strategy with its options, for a help text."""
    rows = [f"{name}:{options_text(made)}" for name, made in strategies().items()]
    return f"--distribute takes, with any of these options, {'; '.join(rows)}."


def leave_memory() -> None:
    """Others share an accelerator with this process, which needs little of it."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
