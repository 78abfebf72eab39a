"""A worker on a GPU ends soon after its current program, or by force if that never ends."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

WORKER = """
import os, queue, sys, threading, time
from hocket.runtime.launch.shutdown import Shutdown

how = sys.argv[1]
commands = queue.Queue()
waiting = threading.Event()
shutdown = Shutdown(wake=lambda: commands.put(None))
shutdown.first = [waiting.set]
shutdown.synchronize = None if how == "cpu" else lambda: print("synchronized", flush=True)


def program():  # one call, as of a compiled program
    if how == "waits for others":
        print("works", flush=True)
        waiting.wait()
    elif how == "computes":
        os.system("echo works; sleep 0.5; echo the program has ended")
    else:
        os.system("echo works; exec sleep 20 > /dev/null")


threading.Thread(target=lambda: (sys.stdin.read(), shutdown.end()), daemon=True).start()
try:
    while how != "idle":
        program()
    print("works", flush=True)
    commands.get()
except BaseException as error:
    print(type(error).__name__, flush=True)
shutdown.stopped()
time.sleep(100)
"""


@pytest.mark.parametrize(
    ("how", "last"),
    [
        ("computes", ["the program has ended", "RunEnded", "synchronized"]),
        ("waits for others", ["RunEnded", "synchronized"]),
        ("idle", ["works", "RunEnded", "synchronized"]),
        ("never ends", ["works", "synchronized"]),
        ("cpu", ["works"]),
    ],
)
def test_a_worker_ends(how: str, last: list[str]) -> None:
    command = [sys.executable, "-c", WORKER, how]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdin is not None and worker.stdout is not None
        assert worker.stdout.readline() == "works\n"
        begin = time.monotonic()
        worker.stdin.close()
        said = ["works", *worker.stdout.read().splitlines()]
        worker.wait(60)
    assert worker.returncode == 1 and time.monotonic() - begin < 30
    assert said[-len(last) :] == last
