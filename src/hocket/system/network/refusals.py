"""The number of connections that this process has refused or ended, by reason."""

from __future__ import annotations

import threading
from collections import Counter


class Refusals:
    """Counts refusals. Any thread may count and read."""

    def __init__(self) -> None:
        self._lock, self._counts = threading.Lock(), Counter[str]()

    def count(self, reason: str) -> None:
        with self._lock:
            self._counts[reason] += 1

    @property
    def by_reason(self) -> dict[str, int]:
        """The number of refusals for each reason that has occurred."""
        with self._lock:
            return dict(self._counts)

    @property
    def total(self) -> int:
        return sum(self.by_reason.values())


REFUSALS = Refusals()
"""The refusals of this process."""
