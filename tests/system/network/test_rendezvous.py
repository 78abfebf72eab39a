"""Processes of a group hear each other once, or hear who failed or is late."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from hocket.system.native import Unavailable
from hocket.system.network.rendezvous import Rendezvous
from hocket.system.shared_memory import MemoryFile


def rendezvous_of(count: int, say: Callable[[Rendezvous, int], Any]) -> list[Any]:
    """Run a rendezvous with a thread for each member; return their results."""
    file, results = MemoryFile.create(Rendezvous.nbytes(count)), [None] * count

    def member(index: int) -> None:
        try:
            results[index] = say(Rendezvous(file, 0, count, index), index)
        except Unavailable as error:
            results[index] = str(error)  # type: ignore[call-overload]

    threads = [threading.Thread(target=member, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_all_members_hear_all_others() -> None:
    def say(rendezvous: Rendezvous, index: int) -> Any:
        return rendezvous.tell(b"abc"[: index + 1]), rendezvous.tell(bytes([index]) * 400)

    told = [b"a", b"ab", b"abc"], [bytes([i]) * 400 for i in range(3)]
    assert rendezvous_of(3, say) == [told] * 3


def test_who_fails_tells_all_others() -> None:
    def say(rendezvous: Rendezvous, index: int) -> Any:
        with rendezvous.or_tell_failure():
            rendezvous.tell(b"")
            if index == 1:
                raise Unavailable("there is no compiler")
            return rendezvous.tell(b"")

    hear = "there is no compiler (in replica 1)"
    assert rendezvous_of(3, say) == [hear, "there is no compiler", hear]


def test_who_is_late_is_named() -> None:
    def say(rendezvous: Rendezvous, index: int) -> Any:
        return rendezvous.tell(b"", seconds=0.1) if index != 1 else None

    assert rendezvous_of(2, say) == ["waited 0.1 s for replica 1", None]
