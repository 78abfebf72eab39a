"""Messages between two processes, of which every byte is authenticated.

A message travels as

    length, MAC of the length, payload, MAC of the payload

with the key of the greeting. A MAC also covers the direction and the number of the message, so a
message that was changed, repeated, dropped, moved, or sent back to its sender has a wrong MAC. The
length has a MAC of its own, so nothing is allocated or waited for because a stranger says so.
"""

from __future__ import annotations

import hmac
import socket
import struct

from hocket.system.messages import MessageSocket
from hocket.system.network.refusals import REFUSALS

_LENGTH = struct.Struct("<Q")
_MAC_BYTES = 32
_HEAD, _BODY = b"length", b"payload"


class Tampered(EOFError):
    """Bytes arrived that the other side did not send, or not in this order.

    The connection is closed, so whoever only asks if it has ended may treat this like any other
    end.
    """


class SignedSocket(MessageSocket):
    """A `MessageSocket` that ends the connection if a byte is not from the other end.

    `write` and `read` pickle, as in a `MessageSocket`. Nothing is unpickled before its MAC has
    proved who sent it. `write_bytes` and `read_bytes` send and return bytes as they are.
    """

    def __init__(self, connection: socket.socket, key: bytes, *, connected: bool) -> None:
        """Wrap a greeted socket. `connected` is True on the side that opened the connection."""
        super().__init__(connection)
        keys = [hmac.digest(key, b"from " + role, "sha256") for role in (b"acceptor", b"connector")]
        self._out, self._in = _Mac(keys[connected]), _Mac(keys[not connected])

    def write_bytes(self, payload: bytes | bytearray | memoryview) -> None:
        length = _LENGTH.pack(memoryview(payload).nbytes)
        # Within the lock, so that messages leave in the order of their numbers.
        with self._writing:
            head = length + self._out.of(_HEAD, length)
            self._send(head, payload, self._out.of(_BODY, payload))
            self._out.number += 1

    def read_bytes(self) -> bytes:
        head = self._exactly(_LENGTH.size + _MAC_BYTES)
        length = head[: _LENGTH.size]
        self._check(_HEAD, length, head[_LENGTH.size :])
        payload = self._exactly(*_LENGTH.unpack(length))
        self._check(_BODY, payload, self._exactly(_MAC_BYTES))
        self._in.number += 1
        return payload

    def _check(self, part: bytes, content: bytes, mac: bytes) -> None:
        if hmac.compare_digest(mac, self._in.of(part, content)):
            return
        self.close()
        REFUSALS.count("tampered")
        raise Tampered(
            f"message {self._in.number} of a connection is not what the other side has sent: its "
            f"bytes were changed, repeated or left out on the way, so the connection was closed."
        )


class _Mac:
    """Computes the MACs of one direction of a connection."""

    def __init__(self, key: bytes) -> None:
        self._keyed = hmac.new(key, digestmod="sha256")
        self.number = 0
        """The number of messages before the present one."""

    def of(self, part: bytes, content: bytes | bytearray | memoryview) -> bytes:
        """Return the MAC of a part of the present message."""
        mac = self._keyed.copy()
        mac.update(part + _LENGTH.pack(self.number))
        mac.update(content)
        return mac.digest()
