"""Ctrl-C between blocks: the first is noted, the second acts, and afterwards all is as before."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from hocket.system.signals import Abandoned, Deferred, heed_termination
from tests.faults import state_of, wait_until


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """Begin with the handlers of a fresh process, and restore whatever was there."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_first_is_noted_and_the_second_acts() -> None:
    with Deferred() as interrupt:
        assert not interrupt.seen
        signal.raise_signal(signal.SIGINT)
        assert interrupt.seen
        with pytest.raises(Abandoned):
            signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_termination_is_deferred_where_it_is_heeded() -> None:
    handler = signal.getsignal(signal.SIGTERM)
    with Deferred():
        assert signal.getsignal(signal.SIGTERM) == handler
    heed_termination()
    with Deferred() as interrupt:
        signal.raise_signal(signal.SIGTERM)
        assert interrupt.seen
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)


def test_threads_leave_signals_alone() -> None:
    """Python sets handlers in the main thread only."""
    handlers = [signal.getsignal(signal.SIGINT)]

    def work() -> None:
        heed_termination()
        with Deferred():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handlers[0] == handlers[1]


SUSPENDED = """
import os, signal, sys, threading, time
from hocket.system.signals import SUSPENSION

lock = threading.Lock()

def note(suspended):
    with lock:
        os.write(1, b"suspended " if suspended else b"goes on ")

SUSPENSION.add(note)
read, write = os.pipe()
child = os.fork()
if not child:
    os.write(write, b"1")  # only now: a fork drops the signals that come while it begins
    while True:
        time.sleep(0.01)  # `pause` would miss a signal that comes just before it
os.read(read, 1)
with lock:
    os.kill(child, signal.SIGTSTP)
    os.waitpid(child, os.WUNTRACED)
    os.kill(child, signal.SIGKILL)
    os.write(1, b"holds a lock ")
    signal.raise_signal(signal.SIGTSTP)
    os.write(1, b"gives it back ")
sys.stdin.readline()
"""


def test_ctrl_z_calls_functions_also_while_the_main_thread_has_their_lock() -> None:
    """A fork calls none, because it shares the connections that they would write to."""
    child = subprocess.Popen(
        [sys.executable, "-c", SUSPENDED], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout
    try:
        wait_until(lambda: state_of(child.pid) == "T")
        child.send_signal(signal.SIGCONT)
        said = b""
        while not said.endswith(b"goes on "):
            said += child.stdout.read(1)
        assert said == b"holds a lock gives it back suspended goes on "
    finally:
        child.kill()
        child.communicate()
