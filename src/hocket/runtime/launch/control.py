"""The connection between a run and an instance: commands there, answers back.

Only what is said once a block goes this way; values between instances go through their channels.
It is a Unix socket in a folder that nobody else can enter, and each side asks the kernel who the
other is. Instances of the run's own process need none: commands and answers are put in queues.
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
"""The beginning of every address of a worker."""
_PEER = struct.Struct("3i")


class Answer(NamedTuple):
    """The answer of an instance: `done` with a result, `failed`, or `gone` without a word."""

    instance: str
    outcome: str
    content: Any = None


class Failure(NamedTuple):
    """Why a command failed."""

    text: str
    """The traceback."""
    error: BaseException | None = None
    """The exception itself, where it was raised in this process."""


Answers = queue.SimpleQueue[Answer]


def tell(connection: MessageSocket, message: Any) -> None:
    """Send a message, even to a process that has died: its missing answer is what reports that."""
    with contextlib.suppress(OSError):
        connection.write(message)


def pass_answers(
    connection: MessageSocket, instance: str, answers: Answers, note: Callable[[Any], None]
) -> None:
    """Pass on what an instance answers until it is gone; `note` has what it reports besides."""
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
    """Connect to a worker that has said where it listens."""
    if not address.startswith(SCHEME):
        raise ValueError(
            f"a worker says `{SCHEME}PATH` as its first line, and this one said {address[:200]!r}: "
            f"does something print before it?"
        )
    connecting = socket.socket(socket.AF_UNIX)
    connecting.settimeout(seconds)
    connecting.connect(address.removeprefix(SCHEME))
    connecting.settimeout(None)
    return _of_one_user(connecting)


def listen(folder: Path, name: str) -> tuple[socket.socket, str]:
    """Listen in a folder that only this user can enter; the socket, and its address."""
    listening = socket.socket(socket.AF_UNIX)
    path = folder / f"{name.replace('/', '-')}.sock"
    listening.bind(str(path))
    listening.listen(1)
    return listening, f"{SCHEME}{path}"


def accept(listening: socket.socket) -> MessageSocket:
    """The one connection that is waited for; after it, nobody can connect any more."""
    path = listening.getsockname()
    accepted, _ = listening.accept()
    listening.close()
    with contextlib.suppress(OSError):
        os.unlink(path)
    return _of_one_user(accepted)


def _of_one_user(connected: socket.socket) -> MessageSocket:
    """The connection; another user is refused, whatever the folder lets in."""
    if hasattr(socket, "SO_PEERCRED"):
        peer = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        _, user, _ = _PEER.unpack(peer)
        if user != os.geteuid():
            connected.close()
            raise PermissionError(f"a process of user {user} is at the other end, not one of ours")
    return MessageSocket(connected)
