"""Every transport hands over what it was given, in order, and ends when it is closed."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from hocket.runtime.channels import Here
from hocket.runtime.instance.wiring import End
from hocket.system.events import Closed, ThreadEvent
from hocket.system.shared_memory import MemoryFile, Space
from tests.runtime.channels.two_ends import KINDS, connected, message, planned, upwards


@pytest.mark.parametrize("kind", KINDS)
def test_first_in_first_out_with_back_pressure(kind: str) -> None:
    sender, receiver = connected(kind)
    thread = threading.Thread(target=lambda: [sender.send(message(k)) for k in range(5)])
    thread.start()
    while sender.box.sent < 2:  # there is room for two, though nobody has read one
        thread.join(0.05)
    thread.join(0.2)
    assert thread.is_alive() and sender.box.sent == 2 and receiver.box.ready()
    received = [float(np.asarray(next(iter(receiver.receive())))[0, 0, 0]) for _ in range(5)]
    thread.join()
    assert received == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert sender.box.waited_ns > 0
    assert (sender.box.sent, receiver.box.taken) == (5, 5) and not receiver.box.ready()


@pytest.mark.parametrize("kind", KINDS)
def test_a_delay_is_how_long_a_message_takes(kind: str) -> None:
    sender, receiver = connected(kind, delay=0.05)
    start = time.perf_counter()
    sender.send(message(1.0))
    sender.send(message(2.0))  # the sender goes on
    assert not receiver.box.ready()
    for _ in range(2):
        receiver.receive()
        assert time.perf_counter() - start >= 0.05


@pytest.mark.parametrize("closer", ["sender", "receiver"])
@pytest.mark.parametrize("kind", KINDS)
def test_closing_wakes_whoever_waits(kind: str, closer: str) -> None:
    sender, receiver = connected(kind)
    ended = []

    def wait() -> None:
        try:
            receiver.receive()
        except Closed:
            ended.append(True)

    waiter = threading.Thread(target=wait)
    waiter.start()
    (sender if closer == "sender" else receiver).box.close()
    waiter.join()
    assert ended == [True]
    with pytest.raises(Closed):
        sender.send(message(1.0))


@pytest.mark.parametrize("kind", KINDS)
def test_one_event_for_whatever_arrives(kind: str) -> None:
    event, pairs = ThreadEvent(), [connected(kind) for _ in range(3)]
    for _, receiver in pairs:
        receiver.box.wake(event)
    for sender, receiver in pairs:
        count = event.count()
        sender.send(message(1.0))
        deadline = time.monotonic() + 10.0
        while event.count() == count and time.monotonic() < deadline:
            event.wait(count)
        assert event.count() > count and receiver.box.ready()
        receiver.receive()


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_an_earlier_epoch_arrives(kind: str) -> None:
    link, transport = upwards(planned()), KINDS[kind]
    room = transport.room(link)
    space = Space(MemoryFile.create(room), 0, room) if room else None
    sender, receiver = (End(link, transport, Here(sends, space=space)) for sends in (True, False))
    for epoch in (1, 2):
        address = receiver.listen()
        for end in (sender, receiver):
            end.connect(address, epoch)
        assert not receiver.box.ready() and sender.box.sent == receiver.box.taken == 0
        sender.send(message(float(epoch)))
        sender.box.close()
