"""The reports of a steward: whatever it says or leaves out, and whoever reads, no wait hangs."""

from __future__ import annotations

import pickle
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from hocket.runtime.launch import Fate, nodes
from hocket.runtime.launch.nodes import Node, connect_to_steward
from hocket.system.messages import MessageSocket
from hocket.system.network.listener import Connection, listener
from hocket.system.steward import PURPOSE, Order
from tests.faults import wait_until
from tests.runtime.launch.stand_ins import StandIn


@pytest.fixture
def node() -> Iterator[tuple[Node, MessageSocket]]:
    """A node, and the end of its steward, which a test plays."""
    ours, theirs = map(MessageSocket, socket.socketpair())
    node = Node("n0", StandIn(fate=Fate("ended")), ours, lease=60.0)
    yield node, theirs
    node.close()
    theirs.close()


@pytest.mark.parametrize(
    "message",
    [
        pickle.dumps(7), pickle.dumps(("mystery",)), pickle.dumps(("said", "nobody", b"")),
        pickle.dumps(("line", "actor/0")), pickle.dumps(("answer", 1, 2)), b"cos\nsystem\n.",
    ],
    ids=["no report", "unknown", "of nobody", "too short", "too long", "harmful"],
)  # fmt: skip
def test_a_report_that_cannot_be_read(node: tuple[Node, MessageSocket], message: bytes) -> None:
    """It ends the waits for the node at once, and says why."""
    run, steward = node
    instance = run.start(Order("actor/0", "", {}, shares=1, memory_nbytes=0))
    steward.write_bytes(message)
    with pytest.raises(EOFError):
        instance.read()
    fate = instance.poll()
    assert fate and "because its steward sent what this run cannot read (" in fate.how


def test_a_terminal_that_nobody_reads_keeps_no_answer_back(
    node: tuple[Node, MessageSocket], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, steward = node
    instance = run.start(Order("actor/0", "", {}, shares=1, memory_nbytes=0))
    reads, printed = threading.Event(), list[str]()
    monkeypatch.setattr(
        nodes, "print_line", lambda line, _: (reads.wait(5.0), printed.append(line))
    )
    steward.write(("line", "actor/0", "hello\n", False))
    steward.write(("said", "actor/0", pickle.dumps(7)))
    assert instance.read() == 7 and not printed
    reads.set()
    run.close()
    assert printed == ["[actor/0 on n0] hello\n"]


@pytest.mark.parametrize(
    ("message", "why"),
    [(None, r"has told no versions within 0\.2 s"), (7, "told something else than versions")],
)
def test_a_steward_that_tells_no_versions(message: Any, why: str) -> None:
    expected = listener().expect(PURPOSE, "n9")
    connections = list[Connection]()
    expected.open(0, connections.append, lambda _: None)
    told = threading.Thread(
        target=lambda: wait_until(lambda: connections) and connections[0].signed().write(message)
    )
    if message is not None:
        told.start()
    with pytest.raises(ConnectionError, match=f"its steward {why}"):
        connect_to_steward("n9", expected.address, 0.2 if message is None else 60.0)
    connections[0].socket.close()
