"""Where in a plan's shared memory each thing lies: the same sums in every process."""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import numpy as np

from hocket.core.plan.data import Plan
from hocket.runtime.averaging.known import Averaging, pages
from hocket.runtime.channels.choice import transport_of
from hocket.runtime.channels.links import LinkKey, links, version_specs
from hocket.runtime.free.ledger import Board, board_dtype
from hocket.runtime.free.newest import LatestShared
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
    board: int = 0
    """Of a free channel: where its board begins, after the event that it signals."""
    latest: int = 0


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
    board = end
    if plan.free:
        end += pages(SharedEvent.nbytes() + board_dtype(plan).itemsize)
    latest = end
    if plan.free:
        end += pages(LatestShared.nbytes(version_specs(plan)))
    return Layout(0, rooms, averages, end, board, latest)


def link_spaces(arena: Arena, where: Layout) -> dict[LinkKey, Space]:
    """The part of the memory that each link has."""
    return {key: Space(arena, *room) for key, room in where.links.items()}


def shared_board(plan: Plan, memory: mmap.mmap, where: Layout) -> Board | None:
    """The board of a plan with a free channel, in memory that its processes share."""
    if not plan.free:
        return None
    event = SharedEvent(memory, where.board)
    start = where.board + SharedEvent.nbytes()
    numbers = np.ndarray((), board_dtype(plan), buffer=memory, offset=start)
    return Board(plan, event, numbers)


def shared_latest(
    plan: Plan, memory: mmap.mmap, where: Layout, *, packed: bool = False
) -> LatestShared | None:
    """Where its newest version lies."""
    if not plan.free:
        return None
    return LatestShared(memory, where.latest, version_specs(plan), packed=packed)
