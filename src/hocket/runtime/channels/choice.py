"""The pipes between processes: which way each link of a plan goes, in memory that they share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from hocket.core.plan.data import Plan
from hocket.runtime.channels.links import Link
from hocket.runtime.channels.packing import packs
from hocket.runtime.channels.transports.one_gpu import OnOneGpu, stays_on_gpu
from hocket.runtime.channels.transports.shared_memory import SharedMemory
from hocket.system.shared_memory import Arena

SharedPipe: TypeAlias = SharedMemory | OnOneGpu


def pipe_bytes(plan: Plan, link: Link) -> int:
    """The shared memory that a link takes."""
    if stays_on_gpu(plan, link):
        return OnOneGpu.nbytes(link)
    return SharedMemory.nbytes(link, plan.channel_of(link.transfer).delay)


def empty_pipes(plan: Plan, arena: Arena, pipes: Iterable[tuple[Link, int]]) -> None:
    """All of them without messages; nobody may be using one."""
    for link, offset in pipes:
        _pipe(plan, arena, link, offset).empty()


def pipes_of(
    plan: Plan, place: str, index: int, arena: Arena, pipes: Iterable[tuple[Link, int]],
    devices: Sequence[Any],
) -> dict[tuple[int, int, int], SharedPipe]:  # fmt: skip
    """Those of one instance, which is on these devices: what it sends to others, or receives."""
    found = {}
    for link, offset in pipes:
        t = link.transfer
        sends = (place, index) == (t.source, link.source)
        if sends or (place, index) == link.end:
            asked, loops = plan.channel_of(t).pack, bool(t.loops)
            packed = packs(asked, devices, sends=sends, loops=loops)
            found[link.key] = _pipe(plan, arena, link, offset, devices[0], packed=packed)
    return found


def _pipe(
    plan: Plan, arena: Arena, link: Link, offset: int, device: Any = None, *, packed: bool = False
) -> SharedPipe:
    if stays_on_gpu(plan, link):
        return OnOneGpu(arena, offset, link, device)
    return SharedMemory(arena, offset, link, plan.channel_of(link.transfer).delay, packed=packed)
