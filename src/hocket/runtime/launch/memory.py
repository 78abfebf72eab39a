"""The memory that all instances see. It holds the status of each, such as what it waits for.

In a plan with lag=free it also holds the newest version of the parameters, and the ledger, which
counts the samples made and taken.

In one process it is plain memory. Processes that share memory map one file, whose parts lie where
`memory_map` says. Processes that share none have statuses of their own, and report them to the run.
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
from hocket.runtime.free.ledger import Ledger, ledger_dtype
from hocket.runtime.free.newest import Newest, NewestHere, NewestShared
from hocket.runtime.observe.status import names, new_statuses, status_dtype
from hocket.system.events import SharedEvent, ThreadEvent
from hocket.system.shared_memory import MemoryFile, Space, pages


@dataclass(frozen=True)
class MemoryMap:
    """The layout of the memory that processes share.

    Each part is a pair (offset, number of bytes). The statuses are at offset 0.
    """

    links: dict[LinkKey, tuple[int, int]]
    """Each link's part. A link whose transport needs no memory has no entry."""
    averages: dict[str, tuple[int, int]]
    """For each place whose replicas average, the part of the memory that they use for it."""
    ledger: int
    """The offset of the ledger, which counts samples if lag=free.

    The event that signals its changes lies at this offset, and its numbers follow.
    """
    newest: int
    """The offset of the newest version of the parameters, which makers read if lag=free."""
    nbytes: int
    """The size of all parts together, in bytes."""


def memory_map(plan: Plan) -> MemoryMap:
    """Lay out the memory of a plan. Every process computes the same layout for itself."""
    end = 0

    def part(nbytes: int) -> tuple[int, int]:
        nonlocal end
        begin, end = end, end + pages(nbytes)
        return begin, nbytes

    part(len(names(plan)) * status_dtype(plan).itemsize)
    rooms = {link.key: transport_of(plan, link).room(link) for link in links(plan)}
    of_links = {key: part(room) for key, room in rooms.items() if room}
    averages = {place: part(Averaging.of(plan, place).nbytes) for place in sorted(plan.averaging)}
    ledger, _ = part(SharedEvent.nbytes() + ledger_dtype(plan).itemsize if plan.free else 0)
    newest, _ = part(NewestShared.nbytes(version_specs(plan)) if plan.free else 0)
    return MemoryMap(of_links, averages, ledger, newest, end)


@dataclass
class PlanMemory:
    """The memory that all instances of a plan share, or that of one process if they share none."""

    statuses: np.ndarray
    ledger: Ledger | None = None
    newest: Newest | None = None
    file: MemoryFile | None = None
    links: Mapping[LinkKey, Space] = field(default_factory=dict)
    """Each link's part of the file. A link that needs none has no entry."""
    averages: Mapping[str, Space] = field(default_factory=dict)
    """For each place whose replicas average, the part of the file that they use for it."""

    @staticmethod
    def create(plan: Plan) -> PlanMemory:
        """Create the memory of a run, in the process of the run.

        Instances in other processes open it with `attach`. If processes share no memory, `attach`
        gives each instance memory of its own.
        """
        launch = plan.launch
        if not launch.one_process and launch.shares_memory != "none" and not launch.nodes:
            where = memory_map(plan)
            return _mapped(plan, MemoryFile.create(where.nbytes), where)
        if launch.one_process and plan.free:
            return PlanMemory(new_statuses(plan), Ledger(plan, ThreadEvent()), NewestHere())
        return PlanMemory(new_statuses(plan))

    @staticmethod
    def attach(
        plan: Plan, file: MemoryFile | None, place: str, devices: Sequence[Any]
    ) -> PlanMemory:
        """Open the run's memory for an instance in another process, given the run's file.

        If there is no file, return memory of this process alone, with nothing but statuses.
        """
        if file is None:
            return PlanMemory(new_statuses(plan))
        where = memory_map(plan)
        assert where.nbytes == file.nbytes, "the run lays its memory out in another way"
        free = plan.free
        asked = plan.channel(free.learner, free.maker).pack if free else None
        sends = free is not None and place == free.learner
        return _mapped(plan, file, where, packed=packs(asked, devices, sends=sends))

    def clear(self) -> None:
        """Forget a free plan's samples and versions. Call only while no instance works."""
        if self.ledger:
            self.ledger.clear()
        if self.newest:
            self.newest.empty()

    def close(self) -> None:
        """Free the memory, and keep a copy of the last statuses."""
        self.statuses = self.statuses.copy()
        self.ledger = self.newest = None  # their arrays would keep the file mapped
        if self.file:
            self.file.close()


def _mapped(plan: Plan, file: MemoryFile, where: MemoryMap, *, packed: bool = False) -> PlanMemory:
    ledger = newest = None
    if plan.free:
        begin = where.ledger + SharedEvent.nbytes()
        numbers = np.ndarray((), ledger_dtype(plan), buffer=file.memory, offset=begin)
        ledger = Ledger(plan, SharedEvent(file.memory, where.ledger), numbers)
        newest = NewestShared(file.memory, where.newest, version_specs(plan), packed=packed)
    of_links = {key: Space(file, *part) for key, part in where.links.items()}
    averages = {place: Space(file, *part) for place, part in where.averages.items()}
    return PlanMemory(new_statuses(plan, file.memory), ledger, newest, file, of_links, averages)
