"""Connections between processes of one user on one machine.

They are Unix sockets in a folder that no other user can enter, and each side asks the kernel which
user is at the other end.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from pathlib import Path

from hocket.system.messages import MessageSocket

SCHEME = "unix:"
"""The beginning of the address of such a socket."""
_PEER = struct.Struct("3i")


def connect(address: str, seconds: float) -> MessageSocket:
    """Connect to the process that listens at an address."""
    if not address.startswith(SCHEME):
        raise ValueError(
            f"the first line of a worker must be its address, `{SCHEME}PATH`, but it is "
            f"{address[:200]!r}: let nothing else print to stdout before the worker does."
        )
    connecting = socket.socket(socket.AF_UNIX)
    try:
        connecting.settimeout(seconds)
        connecting.connect(address.removeprefix(SCHEME))
        connecting.settimeout(None)
    except BaseException:
        connecting.close()
        raise
    return _of_one_user(connecting)


def listen(folder: Path, name: str) -> tuple[socket.socket, str]:
    """Listen in a folder that only this user can enter. Return the socket and its address."""
    listening = socket.socket(socket.AF_UNIX)
    path = folder / f"{name.replace('/', '-')}.sock"
    listening.bind(str(path))
    listening.listen(1)
    return listening, f"{SCHEME}{path}"


def accept(listening: socket.socket) -> MessageSocket:
    """Wait for one connection, then stop listening, so that nobody else can connect."""
    path = listening.getsockname()
    accepted, _ = listening.accept()
    listening.close()
    with contextlib.suppress(OSError):
        os.unlink(path)
    return _of_one_user(accepted)


def _of_one_user(connected: socket.socket) -> MessageSocket:
    """Wrap a connected socket. Raise if the process at the other end belongs to another user.

    This is a second check, in case the folder's permissions fail to keep other users out.
    """
    if hasattr(socket, "SO_PEERCRED"):
        peer = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        _, user, _ = _PEER.unpack(peer)
        if user != os.geteuid():
            connected.close()
            raise PermissionError(
                f"the process at the other end belongs to user {user}, not to {os.geteuid()}"
            )
    return MessageSocket(connected)
