"""Averages arrays through the host's memory, for replicas on any devices.

The arrays of a program on the CPU are in that memory already. Arrays on a GPU are copied to the
host and back, while the thread that runs the program waits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax

from hocket.runtime.averaging import Members, Sites, Space
from hocket.runtime.averaging.groups import Group, InMemory, SharedMemoryWay, joined_group, register
from hocket.runtime.averaging.vectors import narrowed, vector_bytes, widened
from hocket.system.native import library

LINE = 64
"""The alignment in bytes of every array in the shared memory."""


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


class OnHost(Group):
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
        parts = [widened(x) for x in xs]
        specs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in parts]
        means = self.called(specs, parts, _leaf_bytes(xs), root)
        return [narrowed(mean, x) for mean, x in zip(means, xs, strict=True)]


class OnGpu(OnHost):
    """One replica that averages arrays of a GPU. It copies them to the host as joined vectors."""

    target, platform, line = "hocket_reduce_shm", "CUDA", LINE
    __call__ = Group.__call__


AVERAGE = Shm()


def nbytes(sites: Sites, replicas: int) -> int:
    """Return the bytes of shared memory for these calls, enough for replicas on CPUs or GPUs."""
    header, line = library().hocket_average_header_bytes(), library().hocket_average_line_bytes()
    wanted = [
        max(line + 2 * _leaf_bytes(xs), sum(line + 2 * _lines(n) for n in vector_bytes(xs)))
        for xs in sites
    ]
    return header + replicas * sum(wanted)


def _leaf_bytes(xs: Sequence[Any]) -> int:
    """Return the bytes of one replica's arrays, each rounded up to a multiple of `LINE`."""
    parts = [jax.eval_shape(widened, x) for x in xs]
    return sum(_lines(math.prod(x.shape) * x.dtype.itemsize) for x in parts)


def _lines(nbytes: int) -> int:
    return nbytes + -nbytes % LINE
