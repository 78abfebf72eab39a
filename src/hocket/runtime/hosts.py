"""The host functions that an instance, or a program that calls back, keeps open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hocket.core.host import HostFunction, LiveFunction

PREFIX = "host-"


class Hosts:
    """Opens each host function when it is first called."""

    def __init__(self) -> None:
        self._live: dict[HostFunction, LiveFunction] = {}
        self._pieces: dict[str, bytes] = {}
        self.failure: BaseException | None = None
        """What a call raised: XLA passes on its text, not the exception."""

    def get(self, of: HostFunction) -> LiveFunction:
        if of not in self._live:
            self._live[of] = of.open()
            if self._pieces:
                self._live[of].restore(self._pieces)
        return self._live[of]

    def __call__(self, of: HostFunction, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """For a compiled program that calls back."""
        try:
            live = self.get(of)
            live.start(arrays)
            return live.finish()
        except BaseException as error:
            self.failure = self.failure or error
            raise

    def load(self, late: Mapping[str, Any]) -> None:
        """Begin anew, or from what `late` had."""
        self.close()
        self._pieces = {
            name.removeprefix(PREFIX): np.asarray(x).tobytes()
            for name, x in late.items()
            if name.startswith(PREFIX)
        }

    def late(self) -> dict[str, np.ndarray]:
        """What the functions keep, as arrays of bytes; nothing of those that cannot tell."""
        kept = [live.snapshot() or {} for live in self._live.values()] or [self._pieces]
        return {
            PREFIX + name: np.frombuffer(piece, np.uint8)
            for pieces in kept
            for name, piece in pieces.items()
        }

    def close(self) -> None:
        for live in self._live.values():
            live.close()
        self._live.clear()
