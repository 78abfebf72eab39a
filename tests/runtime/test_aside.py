"""Programs in a thread of their own, and what becomes of one that hangs."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

import pytest

from hocket.runtime.host_calls.thread import Aside


def never() -> None:
    return None


def test_all_runs_in_one_thread() -> None:
    aside = Aside("mine")
    found = [aside.run(threading.current_thread, never) for _ in range(3)]
    assert {thread.name for thread in found} == {"mine"} and len(set(found)) == 1


def test_what_is_raised_within_is_raised() -> None:
    error = KeyError("mine")

    def work() -> None:
        raise error

    with pytest.raises(KeyError) as caught:
        Aside("mine").run(work, never)
    assert caught.value is error


def test_what_is_overdue_is_raised_while_it_hangs() -> None:
    go, late = threading.Event(), time.monotonic() + 0.3

    def overdue() -> Any:
        return TimeoutError("it hangs") if time.monotonic() > late else None

    aside = Aside("mine")
    with pytest.raises(TimeoutError, match="it hangs"):
        aside.run(go.wait, overdue)
    assert aside.hangs
    go.set()


def test_the_thread_ends_with_it() -> None:
    aside = Aside("mine")
    thread = aside.run(threading.current_thread, never)
    del aside
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()
