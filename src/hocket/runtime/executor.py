"""What every way of carrying out a plan offers to a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import jax

from hocket.core.plan import Plan


@dataclass
class Timings:
    """Seconds spent on each part of a run."""

    trace: float = 0.0
    compile: float = 0.0
    run: float = 0.0


class Executor(Protocol):
    """Holds the state of a run and advances it."""

    plan: Plan
    timings: Timings

    def start(self, key: jax.Array) -> None:
        """Make the first state, in one compiled program under every plan."""
        ...

    def load(self, state: Any) -> None:
        """Go on from this state."""
        ...

    def state(self) -> Any:
        """The whole state, as the fused program has it."""
        ...

    def run(self, iterations: int) -> dict[str, Any]:
        """Advance by at most `max_block` iterations; metrics stacked over them, on the host."""
        ...

    @property
    def max_block(self) -> int:
        """The most iterations that one call of `run` makes."""
        ...
