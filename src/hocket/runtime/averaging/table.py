"""How replicas agree on a way to average, and a table for people that says which and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hocket.errors import PlanError
from hocket.runtime.averaging import Epoch
from hocket.runtime.averaging.choice import Offer
from hocket.runtime.averaging.known import Averaging, data_bytes, find_way, largest, ways
from hocket.system.text import bytes_text

UNTRIED = "not tried: it stands for another way, and is taken where asked for by name"


@dataclass(frozen=True)
class Row:
    """One way: what a call of it took in the slowest replica, or why it is none."""

    way: str
    seconds: float | None
    note: str


@dataclass(frozen=True)
class Table:
    """Every way, and the one that was chosen: the fastest at the size of the largest call."""

    rows: tuple[Row, ...]
    chosen: str
    nbytes: int
    """Of one call, of one replica."""
    replicas: int

    @property
    def was_measured(self) -> bool:
        return any(row.seconds is not None for row in self.rows)

    def __str__(self) -> str:
        lines = [f"averaged over {self.replicas} replicas, {bytes_text(self.nbytes)} a call:"]
        for row in self.rows:
            mark = ">" if row.way == self.chosen else " "
            if row.seconds is None:
                lines.append(f"{mark} {row.way:<5} {'-':>10} {'-':>11}  {row.note}")
                continue
            speed = f"{bytes_text(self.nbytes / row.seconds)}/s"
            lines.append(
                f"{mark} {row.way:<5} {1e6 * row.seconds:>7.0f} us {speed:>11}  {row.note}"
            )
        return "\n".join(lines)

    @property
    def sentence(self) -> str:
        """What was chosen, in a line."""
        took = {row.way: f"{1e6 * row.seconds:.0f} us" for row in self.rows if row.seconds}
        others = ", ".join(f"`{way}` {time}" for way, time in took.items() if way != self.chosen)
        more = f", against {others}" if others else ""
        call = f" in {took[self.chosen]} a call" if self.chosen in took else ""
        return f"{bytes_text(self.nbytes)} averaged by `{self.chosen}`{call}{more}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def agree(averaging: Averaging, ask: Callable[..., list[Any]], epoch: Epoch = 0) -> Table:
    """Have all replicas average in one way: the one there is, or the one they measure as fastest.

    `ask(command, *arguments)` sends a command of `choice.Reduction` to all of them, and gathers
    their answers in their order.
    """
    table = only(averaging)
    if table is None:
        offers = _by_way(ask("listen", averaging.choices, True))
        table = choose(averaging, ask("measure", offers, epoch))
    offers = _by_way(ask("listen", (table.chosen,), False))
    ask("join", table.chosen, offers[table.chosen], epoch)
    return table


def _by_way(answers: Sequence[Mapping[str, Offer]]) -> dict[str, list[Offer]]:
    return {way: [offers[way] for offers in answers] for way in answers[0]}


def only(averaging: Averaging) -> Table | None:
    """The table where nothing is to be measured; None where there is more than one way."""
    first, *others = averaging.choices
    if others:
        return None
    why = f"`{averaging.wanted}` was asked for" if averaging.wanted else "the only way here"
    if not averaging.wanted and averaging.is_exact:
        why = "with exact=True no clock chooses"
    return _table(averaging, {}, first, why)


def choose(averaging: Averaging, found: Sequence[Mapping[str, float | str]]) -> Table:
    """The cheapest way, by the replica that it is slowest in; a way must go in all of them."""
    costs: dict[str, float | str] = {}
    for way in found[0]:
        here = [each[way] for each in found]
        why = [f"{x} (replica {i})" for i, x in enumerate(here) if isinstance(x, str)]
        costs[way] = why[0] if why else max(x for x in here if isinstance(x, float))
    seconds = {way: cost for way, cost in costs.items() if isinstance(cost, float)}
    if not seconds:
        text = "; ".join(f"`{way}`: {why}" for way, why in costs.items())
        raise PlanError(f"no way to average works between these replicas. {text}.")
    return _table(averaging, costs, min(seconds, key=lambda way: seconds[way]))


def _table(
    averaging: Averaging, costs: Mapping[str, float | str], chosen: str, note: str = ""
) -> Table:
    rows, members = [], averaging.members
    for name, way in {**ways(), chosen: find_way(chosen)}.items():
        cost = costs.get(name, "")
        if not isinstance(cost, str):
            rows.append(Row(name, cost, way.note(members)))
        elif name == chosen:
            rows.append(Row(name, None, f"{way.note(members)} (not measured: {note})"))
        else:
            why = cost or way.why_not(members) or (note and f"not tried: {note}") or UNTRIED
            rows.append(Row(name, None, why))
    return Table(tuple(rows), chosen, data_bytes(largest(averaging.sites)), len(members))
