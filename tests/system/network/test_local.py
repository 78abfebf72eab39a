"""Connections between processes of one user, through Unix sockets."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from hocket.system.messages import MessageSocket
from hocket.system.network.local import accept, connect, listen


def test_messages_arrive_and_nobody_else_can_connect(short_folder: Path) -> None:
    listening, address = listen(short_folder, "actor/0")
    ours: list[MessageSocket] = []
    connecting = threading.Thread(target=lambda: ours.append(connect(address, 60)))
    connecting.start()
    theirs = accept(listening)
    connecting.join()
    ours[0].write(("run", 5))
    assert theirs.read() == ("run", 5)
    assert list(short_folder.iterdir()) == []
    ours[0].close()
    theirs.close()


def test_a_first_line_that_is_no_address_is_shown() -> None:
    with pytest.raises(ValueError, match=r"address, `unix:PATH`, but it is 'Hello, world': let"):
        connect("Hello, world", 60)


def test_nobody_listens(short_folder: Path) -> None:
    with pytest.raises(FileNotFoundError):
        connect(f"unix:{short_folder / 'nobody.sock'}", 60)


def test_another_user_is_refused(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    me = os.geteuid()
    mine, theirs = socket.socketpair(socket.AF_UNIX)
    listening, _ = listen(short_folder, "actor/0")
    monkeypatch.setattr(socket.socket, "accept", lambda self: (mine, ""))
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    with pytest.raises(PermissionError, match=f"belongs to user {me}, not to {me + 1}"):
        accept(listening)
    assert theirs.recv(1) == b""  # it was told nothing
    theirs.close()
