"""The processor cores that this process may use."""

from __future__ import annotations

import os
import sys

CORES = "HOCKET_CORES"
"""The environment variable for the cores of a process: `0,1` for these two, `:8` for any eight of
those that it would have anyway. See `keep_to_cores`."""
MOST_CORES = "HOCKET_MOST_CORES"
"""The environment variable for the most cores that a process uses, whichever they are. Engines that
divide machines by numbers set it: pinned to the first cores, two of their jobs would share them."""


def usable_cores() -> int:
    """Return the number of cores that this process may use, possibly fewer than the machine has."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min(cores, int(os.environ.get(MOST_CORES) or cores))


def keep_to_cores() -> None:
    """Keep this process on the cores that it was given. Call it before JAX starts its threads."""
    cores = os.environ.get(CORES, "")
    if cores.startswith(":"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(cores[1:])])
    elif cores:
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})


def part_of_cores(index: int, count: int) -> list[int]:
    """Return part `index` of the cores of this process. With too few cores, parts share some."""
    mine = sorted(os.sched_getaffinity(0))
    first, last = (len(mine) * k // count for k in (index, index + 1))
    return mine[first : max(last, first + 1)]
