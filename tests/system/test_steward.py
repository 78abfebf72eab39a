"""Stewards: what goes wrong with a worker is told, and nothing is left of a steward that fails."""

from __future__ import annotations

import os
import pickle
import queue
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hocket.runtime.launch import process
from hocket.runtime.launch.nodes import connect_to_steward
from hocket.system import steward
from hocket.system.children import Child
from hocket.system.messages import MessageSocket
from hocket.system.network import get_network
from hocket.system.steward import Order, Setup, WorkerProcess
from tests.faults import wait_until

pytestmark = pytest.mark.usefixtures("nothing_is_left")


def test_a_worker_whose_first_line_is_no_address() -> None:
    said: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
    order = Order("actor/0", "this", {}, shares=1, memory_nbytes=0)
    WorkerProcess(order, os.environ, lambda *message: said.put(message))
    told: dict[str, tuple[Any, ...]] = {}
    while not {"unreachable", "ended"} <= told.keys():
        message = said.get(timeout=60.0)
        told[message[0]] = message
    assert "must be its address" in told["unreachable"][2]
    assert "Zen of Python" in told["unreachable"][2]


@pytest.fixture
def serving(short_folder: Path) -> Iterator[tuple[Child, MessageSocket]]:
    """A steward whose temporary folder is `short_folder`, and the connection to it."""
    setup = pickle.dumps(Setup("n0", 60.0, get_network()))
    env = {**os.environ, "TMPDIR": str(short_folder)}
    child = Child((sys.executable, "-m", steward.__name__), env, setup)
    yield child, connect_to_steward("n0", child.first_line(60.0), 60.0)
    child.kill(5.0)


def test_a_command_that_fails_ends_the_steward(
    serving: tuple[Child, MessageSocket], short_folder: Path
) -> None:
    child, run = serving
    run.write(("start", Order("actor/0", process.__name__, {}, shares=1, memory_nbytes=1 << 60)))
    assert child.wait(60.0)
    ended = child.poll()
    assert ended and "ended with code 1" in ended[0] and "cannot reserve" in ended[1]
    assert not list(short_folder.iterdir())
    run.close()


def test_no_folder_is_left_if_a_steward_is_killed(
    serving: tuple[Child, MessageSocket], short_folder: Path
) -> None:
    """A worker's folder is gone as soon as the steward has connected to the worker."""
    child, run = serving
    run.write(("start", Order("actor/0", process.__name__, {}, shares=1, memory_nbytes=0)))
    wait_until(lambda: list(short_folder.iterdir()))
    wait_until(lambda: not list(short_folder.iterdir()))
    assert child.poll() is None
    run.close()
    assert child.wait(60.0)
