"""Pickled messages between two processes, through a socket. Each is preceded by its length."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import struct
import threading
from typing import Any

SHORT_BYTES = 1 << 16
"""Messages below this size are sent in one piece with their length."""
_LENGTH = struct.Struct("<Q")


class MessageSocket:
    """A socket that carries messages.

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
        payload = pickle.dumps(message, protocol=5)
        length = _LENGTH.pack(len(payload))
        with self._writing:
            # Two sends would wake the other side twice, but joining long ones costs a copy.
            if len(payload) < SHORT_BYTES:
                self._socket.sendall(length + payload)
            else:
                self._socket.sendall(length)
                self._socket.sendall(payload)

    def read(self) -> Any:
        """Return the next message. Raise `EOFError` if the other side is gone."""
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        return pickle.loads(self._exactly(length))

    def send_fd(self, fd: int) -> None:
        """Send a file descriptor, which the other side takes with `receive_fd`."""
        socket.send_fds(self._socket, [b"f"], [fd])

    def receive_fd(self) -> int:
        """Return the file descriptor that was sent; programs started here do not inherit it."""
        _, (fd,), *_ = socket.recv_fds(self._socket, 1, 1)
        os.set_inheritable(fd, False)
        return fd

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes a reading thread; close does not
        self._socket.close()

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
