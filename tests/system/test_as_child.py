"""A process that another of ours started: it leaves signals to its parent, and ends with it."""

from __future__ import annotations

import subprocess
import sys


def output(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout


def test_a_child_leaves_signals_to_its_parent_and_ends_with_it() -> None:
    """A process that it starts does not ignore SIGTERM."""
    code = """
import os, signal, subprocess, sys
from hocket.system.as_child import leave_signals, say_hello, wait_for_end_of

leave_signals()
say_hello("here")
os.kill(os.getpid(), signal.SIGINT)
os.kill(os.getpid(), signal.SIGTERM)
with subprocess.Popen(["sleep", "60"]) as helper:
    helper.terminate()
print("the helper ended with", helper.returncode)
middle = os.getpid()
if not os.fork():
    wait_for_end_of(middle)
    os.write(1, b"so did I\\n")
"""
    assert output(code) == "here\nthe helper ended with -15\nso did I\n"
