"""The memory that all instances of a plan see: statuses, a free plan's ledger and newest version.

In one process that is plain memory. Processes map the same file, in which each part lies where
`memory_map` says; those that share none have statuses of their own, and report them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hocket.core.plan.data import Plan
from hocket.runtime.averaging.known import Averaging
from hocket.runtime.channels.choice import transport_of
from hocket.runtime.channels.links import LinkKey, links, version_specs
from hocket.runtime.channels.packing import packs
from hocket.runtime.free.ledger import Board, board_dtype
from hocket.runtime.free.newest import Latest, LatestHere, LatestShared
from hocket.runtime.observe.status import names, new_statuses, status_dtype
from hocket.system.events import SharedEvent, ThreadEvent
from hocket.system.shared_memory import MemoryFile, Space, pages


@dataclass(frozen=True)
class MemoryMap:
    """Where each part begins in the memory that processes share, and its bytes; statuses first."""

    links: dict[LinkKey, tuple[int, int]]
    """Links whose transport needs none are left out."""
    averages: dict[str, tuple[int, int]]
    """By place."""
    board: int
    """The beginning of a free plan's board; the event that it signals comes first."""
    latest: int
    nbytes: int


def memory_map(plan: Plan) -> MemoryMap:
    """The same sums in every process."""
    end = 0

    def part(nbytes: int) -> tuple[int, int]:
        nonlocal end
        begin, end = end, end + pages(nbytes)
        return begin, nbytes

    part(len(names(plan)) * status_dtype(plan).itemsize)
    rooms = {link.key: transport_of(plan, link).room(link) for link in links(plan)}
    of_links = {key: part(room) for key, room in rooms.items() if room}
    averages = {place: part(Averaging.of(plan, place).nbytes) for place in sorted(plan.averaging)}
    board, _ = part(SharedEvent.nbytes() + board_dtype(plan).itemsize if plan.free else 0)
    latest, _ = part(LatestShared.nbytes(version_specs(plan)) if plan.free else 0)
    return MemoryMap(of_links, averages, board, latest, end)


@dataclass
class PlanMemory:
    """The memory that all instances of a plan see, or their run alone."""

    statuses: np.ndarray
    board: Board | None = None
    latest: Latest | None = None
    file: MemoryFile | None = None
    links: Mapping[LinkKey, Space] = field(default_factory=dict)
    """The part of the file that each link has, of those that need some."""
    averages: Mapping[str, Space] = field(default_factory=dict)
    """By place."""

    @staticmethod
    def create(plan: Plan) -> PlanMemory:
        """For a run, and for its instances where they are in this process."""
        if not plan.launch.one_process:
            if plan.launch.shares_memory == "none":
                return PlanMemory(new_statuses(plan))
            where = memory_map(plan)
            return _mapped(plan, MemoryFile.create(where.nbytes), where)
        if not plan.free:
            return PlanMemory(new_statuses(plan))
        return PlanMemory(new_statuses(plan), Board(plan, ThreadEvent()), LatestHere())

    @staticmethod
    def attach(
        plan: Plan, file: MemoryFile | None, place: str, devices: Sequence[Any]
    ) -> PlanMemory:
        """For an instance on these devices, in the file that the run has created, if it has."""
        if file is None:
            return PlanMemory(new_statuses(plan))
        where = memory_map(plan)
        assert where.nbytes == file.nbytes, "the run lays its memory out in another way"
        free = plan.free
        asked = plan.channel(free.learner, free.maker).pack if free else None
        sends = free is not None and place == free.learner
        return _mapped(plan, file, where, packed=packs(asked, devices, sends=sends))

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
        if self.file:
            self.file.close()


def _mapped(plan: Plan, file: MemoryFile, where: MemoryMap, *, packed: bool = False) -> PlanMemory:
    board = latest = None
    if plan.free:
        begin = where.board + SharedEvent.nbytes()
        numbers = np.ndarray((), board_dtype(plan), buffer=file.memory, offset=begin)
        board = Board(plan, SharedEvent(file.memory, where.board), numbers)
        latest = LatestShared(file.memory, where.latest, version_specs(plan), packed=packed)
    of_links = {key: Space(file, *part) for key, part in where.links.items()}
    averages = {place: Space(file, *part) for place, part in where.averages.items()}
    return PlanMemory(new_statuses(plan, file.memory), board, latest, file, of_links, averages)
