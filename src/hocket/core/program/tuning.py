"""Tuning: tracing a program for the hardware that it will run on.

The program's numbers stay the same. The runtime makes the choices when it lowers a program. Graphs
are traced with the defaults, so a graph and its plans are the same everywhere.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass

from hocket.core.program.context import setting


@dataclass(frozen=True)
class Tuning:
    """Choices that make programs faster only on some devices. The defaults suit a CPU."""

    unroll: int = 1
    """How many steps of a loop over time run in one pass."""
    kernels: bool = False
    """True to run small networks as GPU kernels of their own: see `hocket.ops.dense`."""


PLAIN = Tuning()
MOST_UNROLLED = 8
"""The largest `Tuning.unroll` on any hardware, for code that runs before the hardware is known."""
_tuning: ContextVar[Tuning] = ContextVar("tuning", default=PLAIN)


def tuning() -> Tuning:
    """Return the `Tuning` for the program that is being traced."""
    return _tuning.get()


def tuned(choice: Tuning) -> AbstractContextManager[None]:
    """Inside this context, trace programs with these choices for the hardware."""
    return setting(_tuning, choice)
