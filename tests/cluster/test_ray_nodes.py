"""How clusters of Ray are named, and what is refused before Ray is asked."""

from __future__ import annotations

import socket
import sys
import threading

import pytest

from hocket.cluster import ray_nodes
from hocket.cluster.ray_nodes import RayNode, Wanted, nodes_text, wanted_of
from hocket.runtime.launch import cluster_named, launcher_named


@pytest.mark.parametrize(
    ("argument", "means"),
    [
        ("", Wanted()),
        ("10.0.0.1:6379", Wanted("10.0.0.1:6379")),
        ("[::1]:6379", Wanted("[::1]:6379")),
        ("nodes=4,cpus=8,gpus=1", Wanted(nodes=4, cpus=8, gpus=1)),
        ("cpus=2,gpus=0", Wanted(cpus=2, gpus=0)),
    ],
)
def test_names(argument: str, means: Wanted) -> None:
    assert wanted_of(argument) == means
    name = launcher_named(f"ray:{argument}" if argument else "ray").launch.name
    assert name == (f"ray:{argument}" if argument else "ray")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("ray://10.0.0.1:10001", "`ray job submit --working-dir . -- hocket train"),
        ("ray:here", r"because of `here`: write `ray`, `ray:HOST:PORT`"),
        ("ray:nodes=0", "because of `nodes=0`"),
        ("ray:nodes=some", "because of `nodes=some`"),
        ("ray:cpu=2", r"unknown option `cpu` in `ray:cpu=2`.*cpus"),
    ],
)
def test_no_cluster_has_such_a_name(name: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        launcher_named(name)


def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'hocket\[ray\]'"):
        cluster_named("ray")


def test_what_a_node_lacks() -> None:
    node = RayNode("n0", "a", "10.0.0.1", {"CPU": 8.0, "GPU": 2.0}, {"CPU": 3.0, "GPU": 2.0})
    assert node.lacks({"CPU": 8, "GPU": 2}) == ["3 of its 8 CPUs free"]
    assert node.lacks({"CPU": 3}) == []
    assert node.lacks({"TPU": 1}) == ["0 of its 0 TPUs free"]
    assert nodes_text({"n0": node}) == "free are n0 with 3 of 8 CPUs, n0 with 2 of 2 GPUs"


def test_nodes_keep_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are those of their hosts, if these are unique, else the next free number."""
    names = dict[str, str]()
    monkeypatch.setattr(ray_nodes, "_names", names)
    ray_nodes._name({"a": "vm", "b": "vm", "c": "big", "d": "n1"})
    assert names == {"a": "n0", "b": "n2", "c": "big", "d": "n1"}
    ray_nodes._name({"b": "vm", "e": "big", "f": "vm"})
    assert names == {"a": "n0", "b": "n2", "c": "big", "d": "n1", "e": "n3", "f": "n4"}


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_something_else_listens_there(answer: bytes) -> None:
    """It is refused at once, where Ray would try for minutes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def reply() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer)

        threading.Thread(target=reply, daemon=True).start()
        with pytest.raises(ValueError, match="something else than Ray listens there"):
            ray_nodes._check_answers(address)
    with pytest.raises(ValueError, match=f"no Ray cluster answers at {address}"):
        ray_nodes._check_answers(address)
