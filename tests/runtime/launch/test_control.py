"""The control connection between a run and an instance."""

from __future__ import annotations

import pickle
import queue
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from hocket.runtime.launch.control import Answer, Answers, Failure, pass_answers, tell
from hocket.system.messages import MessageSocket

Ends = tuple[MessageSocket, MessageSocket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """The ends of the run and of an instance."""
    ours, theirs = map(MessageSocket, socket.socketpair())
    yield ours, theirs
    ours.close()
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


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"no pickle", "UnpicklingError"),
        (pickle.dumps("done"), "ValueError: too many values"),
        (pickle.dumps(("gone", None)), "answered neither `done` nor `failed`: 'gone'"),
        (pickle.dumps(("failed", "why")), "answered neither `done` nor `failed`: 'failed'"),
        (pickle.dumps(("status", b"a byte")), "ValueError: buffer size"),
    ],
)
def test_an_answer_that_cannot_be_read_is_a_failure(ends: Ends, message: bytes, why: str) -> None:
    ours, theirs = ends
    theirs.write_bytes(message)
    theirs.close()
    answers: Answers = queue.SimpleQueue()
    statuses: list[Any] = []
    pass_answers(
        ours, "actor/0", answers, lambda status: statuses.append(np.frombuffer(status, "f8"))
    )
    answer = answers.get_nowait()
    assert answer.outcome == "failed" and why in answer.content.text


def test_answers_and_statuses_are_told_apart(ends: Ends) -> None:
    ours, theirs = ends
    failed = ("failed", Failure("why"))
    for message in (("status", b"1"), ("done", {"x": 1}), ("status", b"2"), failed):
        theirs.write(message)
    theirs.close()
    answers: Answers = queue.SimpleQueue()
    statuses: list[Any] = []
    pass_answers(ours, "env/3", answers, statuses.append)
    assert [answers.get_nowait() for _ in range(3)] == [
        Answer("env/3", "done", {"x": 1}), Answer("env/3", *failed),
        Answer("env/3", "gone"),
    ]  # fmt: skip
    assert statuses == [b"1", b"2"] and answers.empty()
