"""A host function that counts its calls, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from hocket.core.program.service import At


@dataclass(frozen=True)
class Counter:
    """Adds to its argument how often it was called; all that were opened are in `opened`."""

    name: str = "counter"
    saves: bool = True
    service: Any = None
    opened: list[LiveCounter] = field(default_factory=list, hash=False, compare=False)
    keeps_state: bool = True
    changes: bool = False

    def specs(self, *arrays: jax.ShapeDtypeStruct) -> Sequence[jax.ShapeDtypeStruct]:
        return arrays

    def open(self, *, watched: bool = False, at: At | None = None) -> LiveCounter:
        self.opened.append(LiveCounter(self, watched, at))
        return self.opened[-1]


class LiveCounter:
    """The function at work; the test sets `hangs` to an exception that says so."""

    def __init__(self, of: Counter, watched: bool, at: At | None) -> None:
        self.of, self.watched, self.at = of, watched, at
        self.count, self.is_closed = 0, False
        self.hangs: Exception | None = None

    def start(self, arrays: Sequence[np.ndarray]) -> None:
        self._arrays = arrays

    def finish(self) -> list[np.ndarray]:
        self.count += 1
        return [x + np.asarray(self.count, x.dtype) for x in self._arrays]

    def snapshot(self) -> dict[str, bytes] | None:
        return {self.of.name: bytes([self.count])} if self.of.saves else None

    def restore(self, pieces: Mapping[str, bytes]) -> None:
        self.count = pieces[self.of.name][0]

    def overdue(self) -> Exception | None:
        return self.hangs

    def close(self) -> None:
        self.is_closed = True
