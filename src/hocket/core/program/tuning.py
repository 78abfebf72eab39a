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
    """Choices that pay on one kind of device and not on another. The defaults are for a CPU."""

    unroll: int = 1
    """How many steps of a loop over time run in one pass."""
    kernels: bool = False
    """True to run small networks as GPU kernels of their own: see `hocket.ops.dense`."""


PLAIN = Tuning()
MOST_UNROLLED = 8
"""The largest `Tuning.unroll`, for code that must count calls before the choice is made."""
_tuning: ContextVar[Tuning] = ContextVar("tuning", default=PLAIN)


def tuning() -> Tuning:
    """Return the choices for the program that is being traced."""
    return _tuning.get()


def tuned(choice: Tuning) -> AbstractContextManager[None]:
    """Trace programs with these choices inside this context."""
    return setting(_tuning, choice)
