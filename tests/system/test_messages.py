"""Messages arrive whole and in order through a socket, and its end is noticed."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

from hocket.system.messages import SHORT_BYTES, MessageSocket

Pair: TypeAlias = tuple[MessageSocket, MessageSocket]


@pytest.fixture
def pair() -> Iterator[tuple[MessageSocket, MessageSocket]]:
    mine, theirs = socket.socketpair()
    with mine, theirs:
        yield MessageSocket(mine), MessageSocket(theirs)


def test_messages_arrive_whole_and_in_order(pair: Pair) -> None:
    mine, theirs = pair
    large = np.arange(8 * SHORT_BYTES)  # more than a socket holds
    messages: list[Any] = [("step",), None, b"", {"a": [1.5]}, b"x" * SHORT_BYTES, large, "last"]
    writer = threading.Thread(target=lambda: [mine.write(message) for message in messages])
    writer.start()
    for message in messages:
        received = theirs.read()
        if isinstance(message, np.ndarray):
            np.testing.assert_array_equal(received, message)
        else:
            assert received == message
    writer.join()


def test_the_end_is_noticed_also_in_the_midst_of_a_message(pair: Pair) -> None:
    mine, theirs = pair
    mine.write("the last")
    mine.close()
    assert theirs.read() == "the last"
    with pytest.raises(EOFError):
        theirs.read()
    raw, other = socket.socketpair()
    raw.sendall(b"\x09\0\0\0\0\0\0\0half")
    raw.close()
    with other, pytest.raises(EOFError):
        MessageSocket(other).read()


def test_a_thread_that_reads_notices_that_its_own_side_closes(pair: Pair) -> None:
    mine, _ = pair
    noticed = threading.Event()

    def read() -> None:
        with pytest.raises(EOFError):
            mine.read()
        noticed.set()

    reader = threading.Thread(target=read)
    reader.start()
    mine.close()
    assert noticed.wait(60)
    reader.join()


def test_a_descriptor_arrives_and_is_not_inherited(pair: Pair, tmp_path: Path) -> None:
    mine, theirs = pair
    with (tmp_path / "told").open("w") as file:
        mine.write("a file comes")
        mine.send_fd(file.fileno())
    assert theirs.read() == "a file comes"
    fd = theirs.receive_fd()
    assert not os.get_inheritable(fd)
    with os.fdopen(fd, "w") as file:
        file.write("from there")
    assert (tmp_path / "told").read_text() == "from there"
