"""How a program is traced for the hardware it will run on: the same numbers, another program.

The runtime chooses when it lowers; what is traced for analysis never sees a choice, so a graph and
its plans are the same everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """What pays on one kind of device and not on another. The defaults are a CPU's."""

    unroll: int = 1
    """Steps in one pass of a loop over time."""
    kernels: bool = False
    """Whether small networks are GPU kernels of their own, see `hocket.ops.dense`."""


PLAIN = Tuning()
MOST_UNROLLED = 8
"""What `Tuning.unroll` may be, for those who must make room before they know."""
_tuning: ContextVar[Tuning] = ContextVar("tuning", default=PLAIN)


def tuning() -> Tuning:
    """What the program being traced is tuned for."""
    return _tuning.get()


@contextmanager
def tuned(choice: Tuning) -> Iterator[None]:
    """Within, programs are traced for these choices."""
    token = _tuning.set(choice)
    try:
        yield
    finally:
        _tuning.reset(token)
