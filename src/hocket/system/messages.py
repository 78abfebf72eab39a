"""Pickled messages between two processes, through a socket. The length precedes each message."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import struct
import threading
from typing import Any

SHORT_BYTES = 1 << 16
"""The size in bytes below which a message and its length are sent together."""
_LENGTH = struct.Struct("<Q")


class MessageSocket:
    """A socket that sends and receives pickled messages.

    mine, theirs = socket.socketpair()
    MessageSocket(mine).write({"seed": 7})
    MessageSocket(theirs).read()                # {"seed": 7}
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._writing = threading.Lock()  # two threads may send at the same time

    def fileno(self) -> int:
        return self._socket.fileno()

    def write(self, message: Any) -> None:
        self.write_bytes(pickle.dumps(message, protocol=5))

    def read(self) -> Any:
        """Return the next message, waiting for it. Raise `EOFError` if the connection is closed."""
        return pickle.loads(self.read_bytes())

    def write_bytes(self, payload: bytes | bytearray | memoryview) -> None:
        """Send bytes as they are. The other side takes them with `read_bytes`."""
        with self._writing:
            self._send(_LENGTH.pack(memoryview(payload).nbytes), payload)

    def read_bytes(self) -> bytes:
        """Return the next message as bytes. Raise `EOFError` if the connection is closed."""
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        return self._exactly(length)

    def send_fd(self, fd: int) -> None:
        """Send a file descriptor, which the other side takes with `receive_fd`."""
        socket.send_fds(self._socket, [b"f"], [fd])

    def receive_fd(self) -> int:
        """Receive a file descriptor sent by `send_fd` on the other side. No child inherits it."""
        _, (fd,), *_ = socket.recv_fds(self._socket, 1, 1)
        os.set_inheritable(fd, False)
        return fd

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes a reading thread, unlike `close`
        self._socket.close()

    def _send(self, *parts: bytes | bytearray | memoryview) -> None:
        """Send the parts of one message. The caller holds `_writing`."""
        # Sending the length by itself wakes the other side twice. Joining it to the rest costs a
        # copy, which is too much for a long message.
        if sum(memoryview(part).nbytes for part in parts) < SHORT_BYTES:
            parts = (b"".join(parts),)
        for part in parts:
            self._socket.sendall(part)

    def _exactly(self, count: int) -> bytes:
        received = b""
        while len(received) < count:
            try:
                chunk = self._socket.recv(count - len(received), socket.MSG_WAITALL)
            except OSError:  # reset by the other side, or closed by this one
                chunk = b""
            if not chunk:
                raise EOFError
            received += chunk
        return received
