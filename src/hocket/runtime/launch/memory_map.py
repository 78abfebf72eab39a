"""Where in a plan's shared memory each thing lies: the same sums in every process."""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import numpy as np

from hocket.core.plan.data import Plan
from hocket.runtime.averaging.known import Averaging, pages
from hocket.runtime.channels.choice import transport_of
from hocket.runtime.channels.links import LinkKey, links, version_specs
from hocket.runtime.free.ledger import Ledger, ledger_dtype
from hocket.runtime.free.newest import NewestShared
from hocket.runtime.observe.status import names, status_dtype
from hocket.system.events import SharedEvent
from hocket.system.shared_memory import Arena, Space


@dataclass(frozen=True)
class Layout:
    """Statuses first, then the links, what each averaging place needs, and a free channel's."""

    statuses: int
    links: dict[LinkKey, tuple[int, int]]
    """By link, of those whose transport needs memory: where its part begins, and the bytes."""
    averages: dict[str, tuple[int, int]]
    """By place: where its averages begin, and their bytes."""
    nbytes: int
    ledger: int = 0
    """Of a free channel: where its ledger begins, after the event that it signals."""
    newest: int = 0


def layout(plan: Plan) -> Layout:
    end = pages(len(names(plan)) * status_dtype(plan).itemsize)
    rooms = {}
    for link in links(plan):
        if room := transport_of(plan, link).room(link):
            rooms[link.key] = end, room
            end += pages(room)
    averages = {}
    for place in sorted(plan.averaging):
        size = Averaging.of(plan, place).nbytes
        averages[place] = end, size
        end += size
    ledger = end
    if plan.free:
        end += pages(SharedEvent.nbytes() + ledger_dtype(plan).itemsize)
    newest = end
    if plan.free:
        end += pages(NewestShared.nbytes(version_specs(plan)))
    return Layout(0, rooms, averages, end, ledger, newest)


def link_spaces(arena: Arena, where: Layout) -> dict[LinkKey, Space]:
    """The part of the memory that each link has."""
    return {key: Space(arena, *room) for key, room in where.links.items()}


def shared_ledger(plan: Plan, memory: mmap.mmap, where: Layout) -> Ledger | None:
    """The ledger of a plan with a free channel, in memory that its processes share."""
    if not plan.free:
        return None
    event = SharedEvent(memory, where.ledger)
    start = where.ledger + SharedEvent.nbytes()
    numbers = np.ndarray((), ledger_dtype(plan), buffer=memory, offset=start)
    return Ledger(plan, event, numbers)


def shared_newest(
    plan: Plan, memory: mmap.mmap, where: Layout, *, packed: bool = False
) -> NewestShared | None:
    """Where its newest version lies."""
    if not plan.free:
        return None
    return NewestShared(memory, where.newest, version_specs(plan), packed=packed)
