"""Threads as members of a launcher, which cannot be ended by force."""

from __future__ import annotations

import threading

from hocket.runtime.launch import Command, Fate, Seat
from hocket.runtime.launch.launchers.threads import Threads

SEAT = Seat("actor/0", ("actor/0",))


def test_a_seat_is_a_thread_of_its_name() -> None:
    names: list[str] = []
    member = Threads().start(
        SEAT, Command(work=lambda: names.append(threading.current_thread().name))
    )
    assert member.hello(60) == "actor/0"
    assert member.kill(60) and member.poll() == Fate("ended")
    assert names == ["actor/0"]


def test_one_that_works_goes_on() -> None:
    done = threading.Event()
    member = Threads().start(SEAT, Command(work=done.wait))  # pyright: ignore[reportArgumentType]
    assert member.poll() is None and not member.kill(0.0)
    done.set()
    assert member.kill(60) and member.poll() == Fate("ended")
