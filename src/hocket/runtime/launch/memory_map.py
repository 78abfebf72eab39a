"""Where in a plan's shared memory each thing lies: the same sums in every process."""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import numpy as np

from hocket.core.plan.data import Plan
from hocket.runtime.averaging.known import Averaging, pages
from hocket.runtime.channels.choice import pipe_bytes
from hocket.runtime.channels.links import Link, links, version_specs
from hocket.runtime.free.ledger import Board, board_dtype
from hocket.runtime.free.newest import LatestShared
from hocket.runtime.observe.status import names, status_dtype
from hocket.system.events import SharedEvent


@dataclass(frozen=True)
class Layout:
    """Statuses first, then the pipes, what each averaging place needs, and a free channel's."""

    statuses: int
    pipes: tuple[tuple[Link, int], ...]
    averages: dict[str, tuple[int, int]]
    """By place: where its averages begin, and their bytes."""
    nbytes: int
    board: int = 0
    """Of a free channel: where its board begins, after the event that it signals."""
    latest: int = 0


def layout(plan: Plan) -> Layout:
    end = pages(len(names(plan)) * status_dtype(plan).itemsize)
    pipes = []
    for link in links(plan):
        pipes.append((link, end))
        end += pages(pipe_bytes(plan, link))
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
    return Layout(0, tuple(pipes), averages, end, board, latest)


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
