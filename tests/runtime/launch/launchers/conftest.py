from __future__ import annotations

import importlib
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests import sshd
from tests.ray_cluster import RayCluster, own_network
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


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[RayCluster]:
    """A Ray cluster of two nodes for all tests of a session, which are in it and have its token."""
    if find_spec("ray") is None:
        pytest.skip("there is no ray: pip install 'hocket[ray]'")
    # A short path, because Ray's Unix sockets are below it.
    with own_network(), tempfile.TemporaryDirectory(prefix="hk-ray-", dir="/tmp") as folder:
        cluster = RayCluster(Path(folder), dashboard=True)
        try:
            for _ in range(2):
                cluster.add()
            with pytest.MonkeyPatch.context() as patch:
                for name, value in cluster.env.items():
                    patch.setenv(name, value)
                yield cluster
        finally:
            importlib.import_module("ray").shutdown()
            cluster.stop()
