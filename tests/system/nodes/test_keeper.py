"""The keeper of a program on a node, here without an engine that runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hocket.system.nodes.keeper import Keeper, clean
from tests.faults import is_gone, wait_until

SOURCES = Path(__file__).parents[3] / "src"
pytestmark = pytest.mark.usefixtures("nothing_is_left")


def keeping(code: str, stdin: bytes = b"") -> Keeper:
    keeper = Keeper()
    begin = (("-c", code), stdin, {"MINE": "set"})
    threading.Thread(target=keeper.start, args=begin, kwargs={"assigned": True}).start()
    return keeper


def test_a_program_that_ends() -> None:
    code = "import os, sys; print(os.environ['MINE'], sys.stdin.read()); sys.exit('the last words')"
    keeper = keeping(code, b"the secret")
    assert keeper.hello() == "set the secret"
    how, stderr = keeper.end()
    assert "ended with code 1" in how and stderr == "the last words\n"
    assert keeper.kill(1.0) == (how, stderr)


def test_a_program_that_is_killed() -> None:
    keeper = keeping("import time; print('here', flush=True); time.sleep(600)")
    assert keeper.hello() == "here"
    ended = keeper.kill(60.0)
    assert ended and "was killed by SIGKILL" in ended[0]


def test_a_program_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    keeper = Keeper()
    with pytest.raises(FileNotFoundError):
        keeper.start((), b"", {}, assigned=False)
    with pytest.raises(RuntimeError, match="could not be started"):
        keeper.hello()


def test_a_program_ends_with_its_keeper() -> None:
    code = """
import threading, time
from hocket.system.nodes.keeper import Keeper
keeper = Keeper()
program = ("-c", "import os, time; print(os.getpid(), flush=True); time.sleep(600)")
begin = dict(args=(program, b"", {}), kwargs={"assigned": True}, daemon=True)
threading.Thread(target=keeper.start, **begin).start()
print(keeper.hello(), flush=True)
time.sleep(600)
"""
    env = {**os.environ, "PYTHONPATH": str(SOURCES)}
    process = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE)
    assert process.stdout
    pid = json.loads(process.stdout.readline())
    assert not is_gone(pid)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    wait_until(lambda: is_gone(pid))


def test_of_what_ray_sets_only_its_gpus_remain() -> None:
    env = {"PATH": "/bin", "RAY_ADDRESS": "x", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "3"}
    assert clean(env, assigned=True) == {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "3"}
    assert clean(env, assigned=False) == {"PATH": "/bin"}
