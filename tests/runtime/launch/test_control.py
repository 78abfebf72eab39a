"""The control connection between a run and an instance."""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hocket.runtime.launch.control import (
    Answer,
    Answers,
    accept,
    connect,
    listen,
    pass_answers,
    tell,
)
from hocket.system.messages import MessageSocket

Ends = tuple[MessageSocket, MessageSocket]


@pytest.fixture
def ends(short_folder: Path) -> Iterator[Ends]:
    """The ends of the run and of an instance."""
    listening, address = listen(short_folder, "actor/0")
    ours: list[MessageSocket] = []
    connecting = threading.Thread(target=lambda: ours.append(connect(address, 60)))
    connecting.start()
    theirs = accept(listening)
    connecting.join()
    yield ours[0], theirs
    ours[0].close()
    theirs.close()


def test_commands_and_answers_arrive(ends: Ends, short_folder: Path) -> None:
    ours, theirs = ends
    tell(ours, ("run", 5))
    assert theirs.read() == ("run", 5)
    theirs.write(("done", 7))
    assert ours.read() == ("done", 7)
    assert list(short_folder.iterdir()) == []  # nobody else can connect


def test_a_first_line_that_is_no_address_is_shown() -> None:
    with pytest.raises(ValueError, match=r"address, `unix:PATH`, but it is 'Hello, world': let"):
        connect("Hello, world", 60)


def test_another_user_is_refused(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    me = os.geteuid()
    mine, theirs = socket.socketpair(socket.AF_UNIX)
    listening, _ = listen(short_folder, "actor/0")
    monkeypatch.setattr(socket.socket, "accept", lambda self: (mine, ""))
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    with pytest.raises(PermissionError, match=f"belongs to user {me}, not to {me + 1}"):
        accept(listening)
    assert theirs.recv(1) == b""  # it was told nothing
    theirs.close()


def test_one_that_has_died_is_told_as_well(ends: Ends) -> None:
    """Its missing answer reports the death."""
    ours, theirs = ends
    theirs.close()
    for _ in range(3):
        tell(ours, ("run", 5))
    answers: Answers = queue.SimpleQueue()
    pass_answers(ours, "actor/0", answers, lambda status: None)
    assert answers.get_nowait() == Answer("actor/0", "gone")


def test_answers_and_statuses_are_told_apart(ends: Ends) -> None:
    ours, theirs = ends
    for message in (("status", b"1"), ("done", {"x": 1}), ("status", b"2"), ("failed", "why")):
        theirs.write(message)
    theirs.close()
    answers: Answers = queue.SimpleQueue()
    statuses: list[Any] = []
    pass_answers(ours, "env/3", answers, statuses.append)
    assert [answers.get_nowait() for _ in range(3)] == [
        Answer("env/3", "done", {"x": 1}), Answer("env/3", "failed", "why"),
        Answer("env/3", "gone"),
    ]  # fmt: skip
    assert statuses == [b"1", b"2"] and answers.empty()
