"""The control connection, which carries commands from a run to an instance, and answers back.

It carries a few messages per block; values between instances go through their channels. It is a
Unix socket in a folder that no other user can enter, and each side asks the kernel which user is
at the other end. Instances in the run's own process have queues for commands and answers instead.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from hocket.system.messages import MessageSocket

SCHEME = "unix:"
"""The beginning of every worker's address."""
_PEER = struct.Struct("3i")


class Answer(NamedTuple):
    """The answer of an instance: `done` with a result, `failed`, or `gone` without an answer."""

    instance: str
    outcome: str
    content: Any = None


class Failure(NamedTuple):
    """The reason why a command failed."""

    text: str
    """The traceback."""
    error: BaseException | None = None
    """The exception itself, if it was raised in this process."""


Answers = queue.SimpleQueue[Answer]


def tell(connection: MessageSocket, message: Any) -> None:
    """Send a message. Do not raise if the process has died: its missing answer will show that."""
    with contextlib.suppress(OSError):
        connection.write(message)


def pass_answers(
    connection: MessageSocket, instance: str, answers: Answers, note: Callable[[Any], None]
) -> None:
    """Pass an instance's answers to `answers` and its statuses to `note`, until it hangs up."""
    while True:
        try:
            outcome, content = connection.read()
        except EOFError:
            answers.put(Answer(instance, "gone"))
            return
        if outcome == "status":
            note(content)
        else:
            answers.put(Answer(instance, outcome, content))


def connect(address: str, seconds: float) -> MessageSocket:
    """Connect to a worker at the address that it has printed."""
    if not address.startswith(SCHEME):
        raise ValueError(
            f"the first line of a worker must be its address, `{SCHEME}PATH`, but it is "
            f"{address[:200]!r}: let nothing else print to stdout before the worker does."
        )
    connecting = socket.socket(socket.AF_UNIX)
    connecting.settimeout(seconds)
    connecting.connect(address.removeprefix(SCHEME))
    connecting.settimeout(None)
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
