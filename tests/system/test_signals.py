"""Ctrl-C between blocks: the first is noted, the second acts, and afterwards all is as before."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from hocket.system.signals import Abandoned, Deferred, heed_termination


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
