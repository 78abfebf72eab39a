"""Events: whoever waits looks again once something has changed, or after a short time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from hocket.system.events import Event, SharedEvent, ThreadEvent
from hocket.system.shared_memory import MemoryFile


@pytest.fixture(params=["threads", "processes"])
def event(request: pytest.FixtureRequest) -> Iterator[Event]:
    file = MemoryFile.create(SharedEvent.nbytes())  # an event does not keep its memory
    yield ThreadEvent() if request.param == "threads" else SharedEvent(file.memory, 0)
    file.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a wait take so long that a signal it misses is noticed."""
    monkeypatch.setattr("hocket.system.events.WAIT_SECONDS", 60.0)


def test_signals_are_counted(event: Event) -> None:
    before = event.count()
    event.signal()
    event.signal()
    assert event.count() == before + 2


@pytest.mark.usefixtures("patient")
def test_a_signal_since_the_count_is_not_waited_for(event: Event) -> None:
    """It may come between a look and the wait, and must not be missed."""
    begin, seen = time.monotonic(), event.count()
    event.signal()
    event.wait(seen)
    assert time.monotonic() - begin < 30


@pytest.mark.usefixtures("patient")
def test_a_signal_ends_a_wait(event: Event) -> None:
    changed = threading.Event()

    def waits() -> None:
        while not changed.is_set():
            seen = event.count()
            if not changed.is_set():
                event.wait(seen)

    thread = threading.Thread(target=waits)
    thread.start()
    changed.set()
    event.signal()
    thread.join(30)
    assert not thread.is_alive()


def test_without_a_signal_a_wait_ends_soon(event: Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hocket.system.events.WAIT_SECONDS", 0.01)
    begin = time.monotonic()
    event.wait(event.count())
    assert time.monotonic() - begin < 30


def test_both_sides_of_shared_memory_see_a_signal() -> None:
    file = MemoryFile.create(SharedEvent.nbytes())
    there = MemoryFile.attach(file.fd, file.nbytes)
    mine, theirs = SharedEvent(file.memory, 0), SharedEvent(there.memory, 0)
    seen = theirs.count()
    mine.signal()
    assert theirs.count() == mine.count() != seen
