"""Averages arrays through the host's memory, for replicas on any devices.

The arrays of a program on the CPU are in that memory already. Arrays on a GPU are copied to the
host and back, while the thread that runs the program waits.
"""

from __future__ import annotations

import jax

from hocket.runtime.averaging import Members, Sites, Space
from hocket.runtime.averaging.groups import (
    LINE,
    InMemory,
    MemoryGroup,
    SharedMemoryWay,
    in_lines,
    joined_group,
    leaf_bytes,
    register,
)
from hocket.runtime.averaging.vectors import vector_bytes
from hocket.system.native import library


class Shm(SharedMemoryWay):
    """The way to average through the host's memory, on any devices."""

    name, preference = "shm", 0

    def note(self, members: Members) -> str:
        return "through the host's memory"

    def room(self, members: Members, sites: Sites) -> int:
        return nbytes(sites, len(members))

    def listen(
        self, members: Members, index: int, sites: Sites, space: Space | None
    ) -> InMemory[OnHost]:
        assert space is not None
        made = OnHost if members.device(index).platform == "cpu" else OnGpu
        return InMemory(lambda: made(space, len(members), index, members.delay))


class OnHost(MemoryGroup):
    """Replica `index` of `replicas` processes that average arrays on the CPU.

    Every mean takes `delay` seconds longer, to try out a slow network.
    """

    target, counter = "hocket_average", "hocket_average_counts"
    platform = "cpu"

    def __init__(self, space: Space, replicas: int, index: int, delay: float = 0.0) -> None:
        super().__init__(space)
        register(self.target, self.platform)
        self._group = joined_group(space, replicas, index, delay)

    def __call__(self, *xs: jax.Array, root: int = -1) -> list[jax.Array]:
        return self.of_leaves(xs, root)


class OnGpu(OnHost):
    """One replica that averages arrays of a GPU. It copies them to the host as joined vectors."""

    target, platform, line = "hocket_reduce_shm", "CUDA", LINE
    __call__ = MemoryGroup.__call__


AVERAGE = Shm()


def nbytes(sites: Sites, replicas: int) -> int:
    """Return the bytes of shared memory for these calls, enough for replicas on CPUs or GPUs."""
    header, line = library().hocket_average_header_bytes(), library().hocket_average_line_bytes()
    wanted = [
        max(line + 2 * leaf_bytes(xs), sum(line + 2 * in_lines(n) for n in vector_bytes(xs)))
        for xs in sites
    ]
    return header + replicas * sum(wanted)
