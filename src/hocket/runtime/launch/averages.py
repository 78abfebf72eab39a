"""Which way each place averages: chosen once its replicas have measured them together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hocket.core.plan.data import Plan
from hocket.runtime.averaging import Members
from hocket.runtime.averaging.choice import Reduction
from hocket.runtime.averaging.table import Table, choose, only

Ask = Callable[..., Sequence[Any]]
"""Sends a command to all replicas of the place; their answers."""


def settle(plan: Plan, place: str, start: int, ask: Ask, groups: list[int]) -> Table:
    """The table of one place, whose averages begin at `start` of the shared memory.

    `groups` learns where groups begin there: before anybody waits in one, so that whoever ends the
    run can end that too.
    """
    members, sites = Members.of(plan, place), plan.average_sites(place)
    wanted = plan.channel(place, place).reduce
    table = only(members, sites, wanted)
    if table is None:
        groups += [start + at for at in Reduction.headers(members, sites, wanted)]
        table = choose(members, sites, ask("measure"))
        ask("use", table.chosen)
    groups += [start + at for at in Reduction.headers(members, sites, wanted, table.chosen)]
    return table
