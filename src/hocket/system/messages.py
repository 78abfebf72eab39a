"""Messages between two processes through a socket: pickled, each behind its length."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import struct
import threading
from typing import Any

SHORT_BYTES = 1 << 16
_LENGTH = struct.Struct("<Q")


class MessageSocket:
    """A socket that carries messages.

    mine, theirs = socket.socketpair()
    MessageSocket(mine).write({"seed": 7})
    MessageSocket(theirs).read()                # {"seed": 7}
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._writing = threading.Lock()  # a thread may report while another answers

    def fileno(self) -> int:
        return self._socket.fileno()

    def write(self, message: Any) -> None:
        payload = pickle.dumps(message, protocol=5)
        length = _LENGTH.pack(len(payload))
        with self._writing:
            # A short one together with its length: the other side would wake up for each.
            if len(payload) < SHORT_BYTES:
                self._socket.sendall(length + payload)
            else:
                self._socket.sendall(length)
                self._socket.sendall(payload)

    def read(self) -> Any:
        """The next message; `EOFError` where the other side is gone."""
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        return pickle.loads(self._exactly(length))

    def send_fd(self, fd: int) -> None:
        """Hand a file descriptor over; the other side calls `receive_fd` for it."""
        socket.send_fds(self._socket, [b"f"], [fd])

    def receive_fd(self) -> int:
        """A file descriptor that programs started here do not inherit."""
        _, (fd,), *_ = socket.recv_fds(self._socket, 1, 1)
        os.set_inheritable(fd, False)
        return fd

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # which a thread that reads from it notices
        self._socket.close()

    def _exactly(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            try:
                got = self._socket.recv(count - len(found), socket.MSG_WAITALL)
            except OSError:  # reset by the other side, or closed by this one
                got = b""
            if not got:
                raise EOFError
            found += got
        return found
