"""What the instances of a plan share: statuses, the ledger of a free plan, its newest version.

In one process that is plain memory. Processes map the same memory, where each part lies as
`memory_map` says; those that share none have statuses of their own, and report them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hocket.core.plan.data import Plan
from hocket.runtime.channels.packing import packs
from hocket.runtime.free.ledger import Board
from hocket.runtime.free.newest import Latest, LatestHere
from hocket.runtime.instance.wiring import Spaces
from hocket.runtime.launch.memory_map import (
    Layout,
    layout,
    link_spaces,
    shared_board,
    shared_latest,
)
from hocket.runtime.observe.status import new_statuses
from hocket.system.events import ThreadEvent
from hocket.system.shared_memory import Arena


@dataclass
class Shared:
    """What all instances of a plan see, or their run alone."""

    statuses: np.ndarray
    board: Board | None = None
    latest: Latest | None = None
    arena: Arena | None = None
    layout: Layout | None = None

    @property
    def spaces(self) -> Spaces:
        """The part of the memory that each link has, of those that need some."""
        return link_spaces(self.arena, self.layout) if self.arena and self.layout else {}

    @staticmethod
    def here(plan: Plan) -> Shared:
        """For instances in this process."""
        board = Board(plan, ThreadEvent()) if plan.free else None
        return Shared(new_statuses(plan), board, LatestHere() if plan.free else None)

    @staticmethod
    def alone(plan: Plan) -> Shared:
        """For processes that share nothing."""
        return Shared(new_statuses(plan))

    @staticmethod
    def create(plan: Plan) -> Shared:
        """In memory that processes will share; this one only looks on."""
        where = layout(plan)
        return _mapped(plan, Arena.create(where.nbytes), where)

    @staticmethod
    def attach(plan: Plan, arena: Arena, place: str, devices: Sequence[Any]) -> Shared:
        """In memory that another process has created, for an instance on these devices."""
        where = layout(plan)
        assert where.nbytes == arena.nbytes, "the run lays its memory out in another way"
        free = plan.free
        asked = plan.channel(free.learner, free.maker).pack if free else None
        sends = free is not None and place == free.learner
        return _mapped(plan, arena, where, packed=packs(asked, devices, sends=sends))

    def clear(self) -> None:
        """As before the first sample; while nobody works."""
        if self.board:
            self.board.clear()
        if self.latest:
            self.latest.empty()

    def close(self) -> None:
        """Keep what the statuses were at the end; the memory goes."""
        self.statuses = self.statuses.copy()
        self.board = self.latest = None


def _mapped(plan: Plan, arena: Arena, where: Layout, *, packed: bool = False) -> Shared:
    return Shared(
        new_statuses(plan, arena.memory, where.statuses),
        shared_board(plan, arena.memory, where),
        shared_latest(plan, arena.memory, where, packed=packed),
        arena,
        where,
    )
