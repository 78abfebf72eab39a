"""Where in a plan's shared memory each thing lies: the same sums in every process."""

from __future__ import annotations

from dataclasses import dataclass

from hocket.core.plan import Plan
from hocket.runtime.average import Average
from hocket.runtime.route import Link, links
from hocket.runtime.status import names, status_dtype
from hocket.runtime.transport_shm import SharedMemory


@dataclass(frozen=True)
class Layout:
    """Statuses first, then the pipes, then what each averaging place needs."""

    statuses: int
    pipes: tuple[tuple[Link, int], ...]
    averages: dict[str, tuple[int, int]]
    """By place: where its averages begin, and their bytes."""
    nbytes: int


def layout(plan: Plan) -> Layout:
    end = _rounded(len(names(plan)) * status_dtype(plan).itemsize)
    pipes = []
    for link in links(plan):
        pipes.append((link, end))
        end += _rounded(SharedMemory.nbytes(link, plan.channel_of(link.transfer).delay))
    averages = {}
    for place in sorted(plan.averaging):
        # Half as much again: XLA may copy a part of a program, and a site with it.
        sites = Average.nbytes(plan.average_sites(place), plan.place(place).replicas)
        size = _rounded(sites + sites // 2)
        averages[place] = end, size
        end += size
    return Layout(0, tuple(pipes), averages, end)


def _rounded(nbytes: int) -> int:
    return nbytes + -nbytes % 4096
