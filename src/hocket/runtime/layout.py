"""Where in a plan's shared memory each thing lies: the same sums in every process."""

from __future__ import annotations

from dataclasses import dataclass

from hocket.core.plan import Plan
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
        end += _rounded(SharedMemory.nbytes(link, delay_of(plan, link)))
    averages = {}
    for place in sorted(plan.averaging):
        calls, nbytes = plan.averages[place]
        # Each call site has two copies for each replica, and a header. There are no more of them
        # than calls, and not as many where a loop calls again.
        size = _rounded(plan.place(place).replicas * (2 * nbytes + 512 * calls + 65_536))
        averages[place] = end, size
        end += size
    return Layout(0, tuple(pipes), averages, end)


def delay_of(plan: Plan, link: Link) -> float:
    return plan.channel(link.transfer.source, link.transfer.target).delay


def _rounded(nbytes: int) -> int:
    return nbytes + -nbytes % 4096
