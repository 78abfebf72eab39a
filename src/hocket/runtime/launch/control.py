"""The connection between a run and an instance: commands there, answers back.

Only what is said once a block goes this way; values between instances go through their channels.
In one process both ends are queues, and what is said is handed over as it is. Otherwise it is a
Unix socket in a folder that nobody else can enter, and each side asks the kernel who the other is.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from hocket.system.messages import MessageSocket

SCHEME = "unix:"
"""What an address of a worker begins with."""
_PEER = struct.Struct("3i")


class Answer(NamedTuple):
    """What an instance has said: `done` with a result, `failed`, or `gone` without a word."""

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


class Control(Protocol):
    """The run's end of a connection. Answers arrive in one queue for all instances."""

    def tell(self, *command: Any) -> None:
        """Send a command, even to an instance that has died: its missing answer reports that."""
        ...

    def close(self) -> None:
        """End the connection, and with it the instance when it has time to listen."""
        ...


class Remote:
    """The connection to an instance in another process."""

    def __init__(
        self, instance: str, line: MessageSocket, answers: Answers, note: Callable[[Any], None]
    ) -> None:
        self._instance, self._line, self._answers = instance, line, answers
        self._note = note  # what the instance reports of itself between its answers
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def tell(self, *command: Any) -> None:
        with contextlib.suppress(OSError):
            self._line.write(command)

    def close(self) -> None:
        self._line.close()

    def _read(self) -> None:
        while True:
            try:
                outcome, content = self._line.read()
            except EOFError:
                self._answers.put(Answer(self._instance, "gone"))
                return
            if outcome == "status":
                self._note(content)
            else:
                self._answers.put(Answer(self._instance, outcome, content))


class Local:
    """The connection to an instance in this process: a queue of commands."""

    def __init__(self) -> None:
        self.commands: queue.SimpleQueue[tuple[Any, ...] | None] = queue.SimpleQueue()

    def tell(self, *command: Any) -> None:
        self.commands.put(command)

    def close(self) -> None:
        self.commands.put(None)


def connect(address: str, seconds: float) -> MessageSocket:
    """Connect to a worker that has said where it listens."""
    if not address.startswith(SCHEME):
        raise ValueError(
            f"a worker says `{SCHEME}PATH` as its first line, and this one said {address[:200]!r}: "
            f"does something print before it?"
        )
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(seconds)
    connection.connect(address.removeprefix(SCHEME))
    connection.settimeout(None)
    _check_peer(connection)
    return MessageSocket(connection)


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
    connection, _ = listening.accept()
    listening.close()
    with contextlib.suppress(OSError):
        os.unlink(path)
    _check_peer(connection)
    return MessageSocket(connection)


def _check_peer(connection: socket.socket) -> None:
    """Refuse another user, whatever the folder lets in."""
    if not hasattr(socket, "SO_PEERCRED"):
        return
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    _, user, _ = _PEER.unpack(peer)
    if user != os.geteuid():
        connection.close()
        raise PermissionError(f"a process of user {user} is at the other end, not one of ours")
