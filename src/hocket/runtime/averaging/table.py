"""How replicas agree on a way to average, and the table that shows the choice and its reasons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hocket.errors import PlanError
from hocket.runtime.averaging import Epoch
from hocket.runtime.averaging.known import Averaging, data_bytes, find_way, largest, ways
from hocket.system.text import bytes_text

UNTRIED = "not tried: it is used only if asked for by name"


@dataclass(frozen=True)
class WayRow:
    """One way to average, and the seconds that a call takes in the slowest replica.

    `seconds` is None if the way was not measured.
    """

    way: str
    seconds: float | None
    note: str


@dataclass(frozen=True)
class WayTable:
    """All ways to average, and the one that was chosen.

    If several were measured, the chosen one took the least time for the largest call.
    """

    rows: tuple[WayRow, ...]
    chosen: str
    nbytes: int
    """The bytes that one replica averages in its largest call."""
    replicas: int

    @property
    def was_measured(self) -> bool:
        return any(row.seconds is not None for row in self.rows)

    def __str__(self) -> str:
        lines = [f"averaged over {self.replicas} replicas, {bytes_text(self.nbytes)} a call:"]
        for row in self.rows:
            mark = ">" if row.way == self.chosen else " "
            took = f"{1e6 * row.seconds:.0f} us" if row.seconds else "-"
            speed = f"{bytes_text(self.nbytes / row.seconds)}/s" if row.seconds else "-"
            lines.append(f"{mark} {row.way:<5} {took:>10} {speed:>11}  {row.note}")
        return "\n".join(lines)

    @property
    def sentence(self) -> str:
        """The chosen way and the measured times, in one line of text."""
        took = {row.way: f"{1e6 * row.seconds:.0f} us" for row in self.rows if row.seconds}
        others = ", ".join(f"`{way}` {time}" for way, time in took.items() if way != self.chosen)
        more = f", against {others}" if others else ""
        call = f" in {took[self.chosen]} a call" if self.chosen in took else ""
        return f"{bytes_text(self.nbytes)} averaged by `{self.chosen}`{call}{more}"


def agree(averaging: Averaging, ask: Callable[..., list[Any]], epoch: Epoch = 0) -> WayTable:
    """Have all replicas average by the same way: the only possible one, or the fastest measured.

    `ask(command, *arguments)` calls a method of `choice.Reduction` in all replicas, and returns
    their answers in order.
    """
    table = only(averaging)
    if table is None:
        offers = {way: ask("listen", way, True) for way in averaging.choices}
        table = choose(averaging, {way: ask("measure", way, offers[way], epoch) for way in offers})
    ask("join", table.chosen, ask("listen", table.chosen, False), epoch)
    return table


def only(averaging: Averaging) -> WayTable | None:
    """Return the table of ways if only one can be chosen; None if several must be measured."""
    first, *others = averaging.choices
    if others:
        return None
    why = "exact=True forbids a choice by speed" if averaging.is_exact else "the only way here"
    asked = f"`{averaging.wanted}` was asked for"
    return _table(averaging, {}, first, asked if averaging.wanted else why)


def choose(averaging: Averaging, answers: Mapping[str, Sequence[float | str]]) -> WayTable:
    """Choose the fastest of the ways to average that work in all replicas.

    The time of a way is that of its slowest replica.
    """
    costs: dict[str, float | str] = {}
    for way, measured in answers.items():
        why = [f"{x} (replica {i})" for i, x in enumerate(measured) if isinstance(x, str)]
        costs[way] = why[0] if why else max(x for x in measured if isinstance(x, float))
    seconds = {way: cost for way, cost in costs.items() if isinstance(cost, float)}
    if not seconds:
        text = "; ".join(f"`{way}`: {why}" for way, why in costs.items())
        raise PlanError(
            f"no way to average works between these replicas. {text}. Fix one of these failures."
        )
    return _table(averaging, costs, min(seconds, key=lambda way: seconds[way]))


def _table(
    averaging: Averaging, costs: Mapping[str, float | str], chosen: str, note: str = ""
) -> WayTable:
    rows, members = [], averaging.members
    for name, way in {**ways(), chosen: find_way(chosen)}.items():
        cost = costs.get(name, "")
        if not isinstance(cost, str):
            rows.append(WayRow(name, cost, way.note(members)))
        elif name == chosen:
            rows.append(WayRow(name, None, f"{way.note(members)} (not measured: {note})"))
        else:
            why = cost or way.why_not(members) or (note and f"not tried: {note}") or UNTRIED
            rows.append(WayRow(name, None, why))
    return WayTable(tuple(rows), chosen, data_bytes(largest(averaging.sites)), len(members))
