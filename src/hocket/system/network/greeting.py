"""The greeting, with which every connection between processes of a run begins.

Both sides prove that they know the secret of the run, without sending it. The side that has
connected proves it first, so a stranger learns nothing.

    connector                                         acceptor
      magic, version, digest, epoch, nonce     ->
                                               <-       magic, version, nonce, time
      time, proof                              ->
                                               <-       proof

The magic has 8 bytes, the version 4, an epoch and a time 8, everything else 32; numbers are little
endian. The digest is that of the connection's purpose and name, such as a link's. A proof is an
HMAC-SHA256 with the secret, over the role of who proves and all bytes before it. So a proof is good
for one side of one connection: the role prevents that it is sent back to its maker, and the nonce
of the other side that it is sent again. Every message has a fixed length, and the magic comes
first, so the bytes of a stranger are neither waited for nor stored.

The times give each side an estimate of the other's clock: the other's time was read about halfway
between the send and the receipt.

The functions here do no input or output. Each is a generator that yields the bytes to send and the
number of bytes that it needs next, and is sent these bytes.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
import time
from collections.abc import Callable, Generator
from typing import NamedTuple, TypeAlias

MAGIC, VERSION = b"\x89HOCKET\n", 1
_OPENING = struct.Struct("<8sI")
_HELLO = struct.Struct("<32sQ32s")  # digest, epoch, nonce
_CHALLENGE = struct.Struct("<32sq")  # nonce, time
_TIME = struct.Struct("<q")
_PROOF_BYTES, _NONCE_BYTES = 32, 32


class Refused(ConnectionError):
    """Raised if a greeting fails. `reason` is a short one, by which refusals are counted."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ConnectionId(NamedTuple):
    """Which connection a greeting is for. Both sides must name the same."""

    purpose: str
    """The use of the connection, such as `link` or `control`."""
    name: str
    """The name of this connection, unique for its purpose."""
    epoch: int = 0

    @property
    def digest(self) -> bytes:
        """The digest of purpose and name."""
        purpose, name = self.purpose.encode(), self.name.encode()
        return hashlib.sha256(struct.pack("<Q", len(purpose)) + purpose + name).digest()


class Greeted(NamedTuple):
    """The result of a successful greeting, on either side."""

    key: bytes
    """A key that only the two sides of this connection can compute."""
    clock_offset_ns: int
    """An estimate of the other side's `time.monotonic_ns()` minus this side's."""
    round_trip_ns: int
    """The duration of the round trip with which the offset was measured. The error of the offset
    is at most half of that."""


class Claim(NamedTuple):
    """The claim of a connector that has proved it: to know the secret, and mean this connection."""

    digest: bytes
    epoch: int


Steps: TypeAlias = Generator[tuple[bytes, int], bytes, Greeted]
Decide: TypeAlias = Callable[[Claim], bool | None]
"""Returns True to welcome a connector that has proved its claim, and False to refuse it. None means
not to know yet, and to be asked again."""


def greet(secret: bytes, connection: ConnectionId) -> Steps:
    """Greet as the side that has connected."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    hello = _opening() + _HELLO.pack(connection.digest, connection.epoch, nonce)
    sent = time.monotonic_ns()
    opening = yield hello, _OPENING.size
    _check_opening(opening)
    rest = yield b"", _CHALLENGE.size
    received = time.monotonic_ns()
    _, their_time = _CHALLENGE.unpack(rest)
    said = hello + opening + rest + _TIME.pack(time.monotonic_ns())
    said += _proof(secret, b"connector", said)
    theirs = yield said[-_TIME.size - _PROOF_BYTES :], _PROOF_BYTES
    if not hmac.compare_digest(theirs, _proof(secret, b"acceptor", said)):
        raise Refused("proof", "the other side does not know the secret of this run.")
    return _greeted(secret, said, sent, received, their_time)


def accept(secret: bytes, decide: Decide) -> Steps:
    """Greet as the side that has accepted a connection."""
    opening = yield b"", _OPENING.size
    try:
        _check_opening(opening)
    except Refused as refused:
        if refused.reason == "version":  # so that the other side can say so, too
            yield _opening(), 0
        raise
    hello = yield b"", _HELLO.size
    digest, epoch, _ = _HELLO.unpack(hello)
    sent = time.monotonic_ns()
    nonce = secrets.token_bytes(_NONCE_BYTES)
    challenge = _opening() + _CHALLENGE.pack(nonce, sent)
    answer = yield challenge, _TIME.size + _PROOF_BYTES
    received = time.monotonic_ns()
    said, theirs = opening + hello + challenge + answer[: _TIME.size], answer[_TIME.size :]
    if not hmac.compare_digest(theirs, _proof(secret, b"connector", said)):
        raise Refused("proof", "a process connected that does not know the secret of this run.")
    while (welcome := decide(Claim(digest, epoch))) is None:
        yield b"", 0
    if not welcome:
        raise Refused("unexpected", "a process of this run asked for a connection that is not due.")
    said += theirs
    yield _proof(secret, b"acceptor", said), 0
    return _greeted(secret, said, sent, received, *_TIME.unpack(answer[: _TIME.size]))


def _opening() -> bytes:
    return _OPENING.pack(MAGIC, VERSION)


def _check_opening(opening: bytes) -> None:
    magic, version = _OPENING.unpack(opening)
    if magic != MAGIC:
        raise Refused("stranger", "the other side is no process of hocket.")
    if version != VERSION:
        raise Refused(
            "version",
            f"the other side greets by version {version}, and this hocket by version {VERSION}: "
            f"install the same hocket on all machines.",
        )


def _proof(secret: bytes, role: bytes, said: bytes) -> bytes:
    return hmac.digest(secret, b"hocket proof " + role + b"\0" + said, "sha256")


def _greeted(secret: bytes, said: bytes, sent: int, received: int, their_time: int) -> Greeted:
    key = hmac.digest(secret, b"hocket key\0" + said, "sha256")
    return Greeted(key, their_time - (sent + received) // 2, received - sent)
