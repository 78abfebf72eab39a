"""How replicas agree on a way to average, and a table for people that says which and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hocket.errors import PlanError
from hocket.runtime.averaging import Epoch
from hocket.runtime.averaging.known import Averaging, data_bytes, find_way, largest, ways
from hocket.system.text import bytes_text

UNTRIED = "not tried: it stands for another way, and is taken where asked for by name"


@dataclass(frozen=True)
class WayRow:
    """One way: what a call of it took in the slowest replica, or why it is none."""

    way: str
    seconds: float | None
    note: str


@dataclass(frozen=True)
class WayTable:
    """Every way, and the one that was chosen: the fastest at the size of the largest call."""

    rows: tuple[WayRow, ...]
    chosen: str
    nbytes: int
    """The bytes of one call, of one replica."""
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
        """The choice, in a line."""
        took = {row.way: f"{1e6 * row.seconds:.0f} us" for row in self.rows if row.seconds}
        others = ", ".join(f"`{way}` {time}" for way, time in took.items() if way != self.chosen)
        more = f", against {others}" if others else ""
        call = f" in {took[self.chosen]} a call" if self.chosen in took else ""
        return f"{bytes_text(self.nbytes)} averaged by `{self.chosen}`{call}{more}"


def agree(averaging: Averaging, ask: Callable[..., list[Any]], epoch: Epoch = 0) -> WayTable:
    """Have all replicas average in one way: the one there is, or the one they measure as fastest.

    `ask(command, *arguments)` sends a command of `choice.Reduction` to all of them, and gathers
    their answers in their order.
    """
    table = only(averaging)
    if table is None:
        offers = {way: ask("listen", way, True) for way in averaging.choices}
        table = choose(averaging, {way: ask("measure", way, offers[way], epoch) for way in offers})
    ask("join", table.chosen, ask("listen", table.chosen, False), epoch)
    return table


def only(averaging: Averaging) -> WayTable | None:
    """The table where nothing is to be measured; None where there is more than one way."""
    first, *others = averaging.choices
    if others:
        return None
    why = "with exact=True no clock chooses" if averaging.is_exact else "the only way here"
    asked = f"`{averaging.wanted}` was asked for"
    return _table(averaging, {}, first, asked if averaging.wanted else why)


def choose(averaging: Averaging, found: Mapping[str, Sequence[float | str]]) -> WayTable:
    """The cheapest way, by the replica that it is slowest in; a way must go in all of them."""
    costs: dict[str, float | str] = {}
    for way, here in found.items():
        why = [f"{x} (replica {i})" for i, x in enumerate(here) if isinstance(x, str)]
        costs[way] = why[0] if why else max(x for x in here if isinstance(x, float))
    seconds = {way: cost for way, cost in costs.items() if isinstance(cost, float)}
    if not seconds:
        text = "; ".join(f"`{way}`: {why}" for way, why in costs.items())
        raise PlanError(f"no way to average works between these replicas. {text}.")
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
