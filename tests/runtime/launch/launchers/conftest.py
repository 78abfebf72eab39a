from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import sshd
from tests.sshd import Sshd


@pytest.fixture(scope="session")
def server() -> Iterator[Sshd]:
    """An sshd for all tests of a session."""
    if sshd.program() is None:
        pytest.skip("there is no sshd: apt-get install openssh-server")
    with tempfile.TemporaryDirectory(prefix="hocket-sshd-") as folder:
        started = sshd.start(Path(folder))
        try:
            yield Sshd(Path(folder), started.pid)
        finally:
            started.terminate()
            started.wait()


@pytest.fixture
def ssh(server: Sshd, monkeypatch: pytest.MonkeyPatch) -> Sshd:
    """The server, to which HOCKET_SSH leads."""
    monkeypatch.setenv("HOCKET_SSH", server.ssh)
    return server
