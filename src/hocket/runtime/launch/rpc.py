"""Commands and answers between a run and its worker processes, over a socket.

Only what is said once a block goes this way; values between instances go through their channels.
"""

from __future__ import annotations

import pickle
import socket
import struct
from typing import Any

_LENGTH = struct.Struct("<Q")


def write(connection: socket.socket, message: Any) -> None:
    """Send one message."""
    payload = pickle.dumps(message, protocol=5)
    connection.sendall(_LENGTH.pack(len(payload)))
    connection.sendall(payload)


def read(connection: socket.socket) -> Any:
    """The next message; `EOFError` where the other side is gone."""
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    return pickle.loads(_exactly(connection, length))


def _exactly(connection: socket.socket, count: int) -> bytearray:
    found = bytearray(count)
    view = memoryview(found)
    while view:
        try:
            got = connection.recv_into(view)
        except ConnectionResetError:
            got = 0
        if not got:
            raise EOFError
        view = view[got:]
    return found
