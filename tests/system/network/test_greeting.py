"""The greeting: both sides prove the secret, and everything else is refused, by its reason."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from hocket.system.network.greeting import (
    MAGIC,
    Claim,
    ConnectionId,
    Greeted,
    Refused,
    accept,
    greet,
)

SECRET, OTHER = b"a secret of the run, 32 bytes ...", b"another secret, of another run .."
LINK = ConnectionId("link", "actor/0 -> learner/0", 3)
Change = Callable[[bytes], bytes]


def welcome(*connections: ConnectionId) -> Callable[[Claim], bool]:
    due = [Claim(x.digest, x.epoch) for x in connections]
    return lambda claim: claim in due


class Side:
    """One side of a greeting, which is fed bytes and says what it wants to send."""

    def __init__(self, steps: Any) -> None:
        self.steps, self.said, self.result, self.refused = steps, b"", None, None
        self.received = b""
        self.needed = 0
        self._go(None)

    def feed(self, data: bytes) -> bytes:
        """Take bytes, and return what this side sends then."""
        self.received += data
        before = len(self.said)
        while self.is_open and len(self.received) >= self.needed:
            data, self.received = self.received[: self.needed], self.received[self.needed :]
            self._go(data)
        return self.said[before:]

    @property
    def is_open(self) -> bool:
        return self.result is None and self.refused is None

    def _go(self, data: bytes | None) -> None:
        try:
            out, self.needed = self.steps.send(data)
            self.said += out
        except StopIteration as end:
            self.result = end.value
        except Refused as refused:
            self.refused = refused.reason


def both(connector: Side, acceptor: Side, change: Change = lambda data: data) -> None:
    """Carry bytes between two sides until nobody says more. `change` sees the connector's."""
    said = connector.said
    for _ in range(4):
        answer = acceptor.feed(change(said))
        said = connector.feed(answer)


def test_both_sides_know_each_other_and_share_a_key() -> None:
    connector = Side(greet(SECRET, LINK))
    acceptor = Side(accept(SECRET, welcome(LINK)))
    both(connector, acceptor)
    one, other = connector.result, acceptor.result
    assert isinstance(one, Greeted) and isinstance(other, Greeted)
    assert one.key == other.key and len(one.key) == 32
    for side in (one, other):
        assert abs(side.clock_offset_ns) <= side.round_trip_ns
    again = Side(greet(SECRET, LINK))
    both(again, Side(accept(SECRET, welcome(LINK))))
    assert again.result and again.result.key != one.key


def test_the_clock_of_the_other_side(monkeypatch: pytest.MonkeyPatch) -> None:
    connector, real = Side(greet(SECRET, LINK)), time.monotonic_ns
    acceptor = Side(accept(SECRET, welcome(LINK)))
    ahead = 5_000_000_000
    monkeypatch.setattr(time, "monotonic_ns", lambda: real() + ahead)
    challenge = acceptor.feed(connector.said)
    monkeypatch.setattr(time, "monotonic_ns", real)
    proof = connector.feed(challenge)
    monkeypatch.setattr(time, "monotonic_ns", lambda: real() + ahead)
    connector.feed(acceptor.feed(proof))
    assert connector.result and acceptor.result
    for side, expected in ((connector.result, ahead), (acceptor.result, -ahead)):
        assert abs(side.clock_offset_ns - expected) <= side.round_trip_ns


@pytest.mark.parametrize("asked", [LINK._replace(epoch=2), LINK._replace(name="actor/1"),
                                   LINK._replace(purpose="control")])  # fmt: skip
def test_another_epoch_link_or_purpose(asked: ConnectionId) -> None:
    connector, acceptor = Side(greet(SECRET, asked)), Side(accept(SECRET, welcome(LINK)))
    both(connector, acceptor)
    assert acceptor.refused == "unexpected" and connector.result is None


def test_another_secret() -> None:
    connector, acceptor = Side(greet(OTHER, LINK)), Side(accept(SECRET, welcome(LINK)))
    both(connector, acceptor)
    assert acceptor.refused == "proof" and connector.result is None
    # The acceptor has proved nothing, so nobody can search for the secret with what it said.
    assert len(acceptor.said) == 12 + 40


def test_an_acceptor_without_the_secret() -> None:
    connector, stranger = Side(greet(SECRET, LINK)), Side(accept(OTHER, welcome(LINK)))
    proof = connector.feed(stranger.feed(connector.said))
    connector.feed(proof[-32:])  # its own proof, sent back
    assert connector.refused == "proof"


def test_what_was_said_once_is_not_taken_again() -> None:
    connector, acceptor = Side(greet(SECRET, LINK)), Side(accept(SECRET, welcome(LINK)))
    both(connector, acceptor)
    assert acceptor.result
    again = Side(accept(SECRET, welcome(LINK)))
    again.feed(connector.said)
    assert again.refused == "proof"
    late = Side(greet(SECRET, LINK))
    late.feed(acceptor.said)
    assert late.refused == "proof"


def test_a_changed_byte_is_refused() -> None:
    count = len(Side(greet(SECRET, LINK)).said) + 40
    for k in range(count):
        connector, acceptor = Side(greet(SECRET, LINK)), Side(accept(SECRET, welcome(LINK)))
        seen = [0]

        def change(data: bytes, k: int = k, seen: list[int] = seen) -> bytes:
            at, seen[0] = k - seen[0], seen[0] + len(data)
            flipped = data[at : at + 1] and bytes([data[at] ^ 1]) if at >= 0 else b""
            return data[:at] + flipped + data[at + 1 :] if flipped else data

        both(connector, acceptor, change)
        assert acceptor.refused in ("stranger", "version", "proof") and not connector.result


def test_a_stranger_is_refused_by_the_first_bytes() -> None:
    acceptor = Side(accept(SECRET, welcome(LINK)))
    assert acceptor.feed(b"GET / HTTP/1") == b"" and acceptor.refused == "stranger"
    connector = Side(greet(SECRET, LINK))
    connector.feed(b"HTTP/1.1 400")
    assert connector.refused == "stranger"


def test_another_version_is_named_on_both_sides() -> None:
    acceptor, connector = Side(accept(SECRET, welcome(LINK))), Side(greet(SECRET, LINK))
    acceptor.feed(MAGIC + b"\x09\0\0\0")
    assert acceptor.refused == "version" and acceptor.said.startswith(MAGIC)
    connector.feed(MAGIC + b"\x09\0\0\0")
    assert connector.refused == "version"


def test_an_acceptor_may_take_its_time() -> None:
    decisions = [True, None, None]
    steps: Any = accept(SECRET, lambda _: decisions.pop())
    connector = Side(greet(SECRET, LINK))
    next(steps)
    steps.send(connector.said[:12])
    challenge, _ = steps.send(connector.said[12:])
    assert steps.send(connector.feed(challenge)) == (b"", 0) == steps.send(b"")
    proof, _ = steps.send(b"")
    connector.feed(proof)
    assert connector.result
