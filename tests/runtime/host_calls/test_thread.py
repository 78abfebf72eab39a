"""Programs in a thread of their own, which is abandoned if one hangs."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

import pytest

from hocket.runtime.host_calls.thread import WatchedThread


def never() -> None:
    return None


def test_all_runs_in_one_thread() -> None:
    mine = WatchedThread("mine")
    threads = [mine.run(threading.current_thread, never) for _ in range(3)]
    assert {thread.name for thread in threads} == {"mine"} and len(set(threads)) == 1


def test_what_is_raised_within_is_raised() -> None:
    error = KeyError("mine")

    def work() -> None:
        raise error

    with pytest.raises(KeyError) as caught:
        WatchedThread("mine").run(work, never)
    assert caught.value is error


def test_what_is_overdue_is_raised_while_it_hangs() -> None:
    go, late = threading.Event(), time.monotonic() + 0.3

    def overdue() -> Any:
        return TimeoutError("it hangs") if time.monotonic() > late else None

    thread = WatchedThread("mine")
    with pytest.raises(TimeoutError, match="it hangs"):
        thread.run(go.wait, overdue)
    assert thread.hangs
    go.set()


def test_the_thread_ends_with_it() -> None:
    mine = WatchedThread("mine")
    thread = mine.run(threading.current_thread, never)
    del mine
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()
