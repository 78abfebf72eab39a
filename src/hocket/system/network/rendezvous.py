"""An exchange of messages between all processes of a group, before they start work."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from hocket.system.events import SharedEvent
from hocket.system.native import Unavailable
from hocket.system.shared_memory import MemoryFile

SECONDS = 60.0
"""The seconds for which a member waits for the others, which may still be starting."""

_ROUNDS, _MESSAGE_BYTES, _LOOK_SECONDS = 4, 400, 0.002
_ABSENT, _HERE, _FAILED = 0, 1, 2


class Rendezvous:
    """Up to 4 rounds of messages. In a round, every member sends one message or error to all.

    The memory must be all zeros before the first member uses it. `offset` must be a multiple of 64
    bytes.
    """

    def __init__(self, file: MemoryFile, offset: int, members: int, index: int) -> None:
        self._fence, self._index, self._round = SharedEvent(file.memory, offset), index, 0
        start = offset + SharedEvent.nbytes()
        self._said = np.ndarray((_ROUNDS, members), _record(), buffer=file.memory, offset=start)

    @staticmethod
    def nbytes(members: int) -> int:
        return SharedEvent.nbytes() + _ROUNDS * members * _record().itemsize

    def tell(self, mine: bytes, seconds: float = SECONDS) -> list[bytes]:
        """Send a message in the next round. Return the messages of all members, in member order."""
        said, self._round = self._said[self._round], self._round + 1
        self._say(said, _HERE, mine)
        end = time.monotonic() + seconds
        while (said["state"] == _ABSENT).any() and not (said["state"] == _FAILED).any():
            if time.monotonic() > end:
                late = ", ".join(map(str, np.flatnonzero(said["state"] == _ABSENT)))
                raise Unavailable(f"waited {seconds:g} s for replica {late}")
            time.sleep(_LOOK_SECONDS)
        # A memory fence, so that contents are read only after the states that announce them.
        self._fence.signal()
        heard = [bytes(x[:n]) for x, n in zip(said["content"], said["size"], strict=True)]
        for who in np.flatnonzero(said["state"] == _FAILED):
            raise Unavailable(f"{heard[who].decode(errors='replace')} (in replica {who})")
        return heard

    def fail(self, why: str) -> None:
        """Tell the other members why this one cannot go on, instead of sending its next message."""
        if self._round < _ROUNDS:
            self._say(self._said[self._round], _FAILED, why.encode()[:_MESSAGE_BYTES])

    @contextlib.contextmanager
    def or_tell_failure(self) -> Iterator[None]:
        """Return a context that tells the others of any error in it, so that they stop waiting."""
        try:
            yield
        except BaseException as error:
            self.fail(str(error))
            raise

    def _say(self, said: Any, state: int, content: bytes) -> None:
        mine = said[self._index]
        mine["content"][: len(content)] = np.frombuffer(content, np.uint8)
        mine["size"] = len(content)
        self._fence.signal()  # a memory fence: the content is written before the state
        mine["state"] = state


def _record() -> np.dtype[Any]:
    return np.dtype([("state", "i4"), ("size", "i4"), ("content", "u1", (_MESSAGE_BYTES,))])
