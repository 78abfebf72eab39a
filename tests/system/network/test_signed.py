"""A byte that the other side did not send, or not in this order, ends the connection."""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Callable, Iterator
from typing import TypeAlias

import pytest

from hocket.system.network.refusals import REFUSALS
from hocket.system.network.signed import SignedSocket, Tampered

KEY = bytes(32)
Frames: TypeAlias = list[bytes]


class Ends:
    """A sender, and a receiver that gets whatever bytes a test lets through."""

    def __init__(self) -> None:
        mine, self.caught = socket.socketpair()
        self.inject, theirs = socket.socketpair()
        self.sender = SignedSocket(mine, KEY, connected=True)
        self.receiver = SignedSocket(theirs, KEY, connected=False)

    def frames(self, *messages: object) -> Frames:
        """Return the bytes of messages, without passing them on."""
        every = []
        for message in messages:
            self.sender.write(message)
            every.append(self.caught.recv(1 << 20))
        return every

    def close(self) -> None:
        for end in (self.sender, self.receiver, self.caught, self.inject):
            end.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.close()


def test_messages_both_ways(ends: Ends) -> None:
    for frame in ends.frames("one", {"two": [2]}, b"x" * 100_000):
        ends.inject.sendall(frame)
    assert ends.receiver.read() == "one" and ends.receiver.read() == {"two": [2]}
    assert ends.receiver.read() == b"x" * 100_000
    ends.receiver.write_bytes(b"an answer")
    ends.caught.sendall(ends.inject.recv(1 << 16))
    assert ends.sender.read_bytes() == b"an answer"


CHANGES: dict[str, Callable[[Frames], bytes]] = {
    "injected before": lambda f: b"\0" * 200 + f[0],
    "a byte more": lambda f: f[0][:50] + b"\0" + f[0][50:],
    "a byte less": lambda f: f[0][:50] + f[0][51:] + f[1],
    "changed length": lambda f: bytes([f[0][0] ^ 1]) + f[0][1:],
    "changed payload": lambda f: f[0][:45] + bytes([f[0][45] ^ 1]) + f[0][46:],
    "changed MAC": lambda f: f[0][:-1] + bytes([f[0][-1] ^ 1]),
    "dropped": lambda f: f[1],
    "head of another": lambda f: f[0][:40] + f[1][40:],
    "another order": lambda f: f[1] + f[0],
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_on_the_way_ends_the_connection(change: str, ends: Ends) -> None:
    before = REFUSALS.by_reason.get("tampered", 0)
    ends.inject.sendall(CHANGES[change](ends.frames("first", "other")))
    with pytest.raises(Tampered, match="message 0 of a connection is not what"):
        ends.receiver.read()
    assert REFUSALS.by_reason["tampered"] == before + 1
    with pytest.raises(EOFError):
        ends.receiver.read()


def test_a_message_is_taken_once(ends: Ends) -> None:
    (frame,) = ends.frames("once")
    ends.inject.sendall(2 * frame)
    assert ends.receiver.read() == "once"
    with pytest.raises(Tampered):
        ends.receiver.read()


def test_a_message_does_not_come_back_to_its_sender(ends: Ends) -> None:
    (frame,) = ends.frames("mine")
    ends.caught.sendall(frame)
    with pytest.raises(Tampered):
        ends.sender.read()


class Bomb:
    def __reduce__(self) -> tuple[object, ...]:
        return pytest.fail, ("a stranger's pickle was read",)


def test_a_strangers_length_and_pickle_count_for_nothing(ends: Ends) -> None:
    stranger = SignedSocket(ends.inject, bytes(31) + b"\1", connected=True)
    stranger.write(Bomb())
    assert pickle.dumps(Bomb())
    with pytest.raises(Tampered):
        ends.receiver.read()
    other = Ends()
    other.inject.sendall(struct.pack("<Q", 1 << 62) + bytes(32))
    with pytest.raises(Tampered):  # neither waits for these bytes, nor has room for them
        other.receiver.read()
    other.close()


def test_an_end_in_the_midst_of_a_message_is_an_end(ends: Ends) -> None:
    (frame,) = ends.frames("half")
    ends.inject.sendall(frame[:-5])
    ends.inject.close()
    with pytest.raises(EOFError) as caught:
        ends.receiver.read()
    assert not isinstance(caught.value, Tampered)
