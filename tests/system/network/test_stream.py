"""Messages of one size cross a connection whole and in order, whatever else either side does."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

from hocket.system.events import Closed, ThreadEvent
from hocket.system.network import Network
from hocket.system.network.greeting import ConnectionId
from hocket.system.network.listener import Listener
from hocket.system.network.stream import Stream

LISTENER = Listener(Network())
atexit.register(LISTENER.close)
SMALL, LARGE, HUGE = 4, 1 << 20, 16 << 20  # floats: 16 B, 4 MiB, 64 MiB
numbers = iter(range(1 << 30))


def opened(count: int, slots: int = 2, delay: float = 0.0) -> tuple[Stream, Stream]:
    """Return both ends of a stream of `count` floats, which greet each other meanwhile."""
    name, specs = ConnectionId("link", f"{next(numbers)}", 1), [((count,), np.float32)]
    expected = LISTENER.expect(*name[:2])
    writer = Stream(specs, slots, sends=True)
    reader = Stream(specs, slots, sends=False, delay=delay)
    LISTENER.begin(expected.address, name, 30, writer.attach, writer.fail)
    expected.open(1, reader.attach, reader.fail)
    return writer, reader


def connected(count: int, slots: int = 2, delay: float = 0.0) -> tuple[Stream, Stream]:
    ends = opened(count, slots, delay)
    wait_until(lambda: all(end.is_connected for end in ends))
    return ends


def wait_until(true: Any) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def message(count: int, k: int) -> list[np.ndarray]:
    return [np.arange(k, k + count, dtype=np.float32)]


def until_closed(end: Stream) -> None:
    """Send to a stream, or receive from it, until it is closed."""
    array = np.zeros_like(end.views[0][0])
    with contextlib.suppress(Closed):
        while True:
            end.send([array], 30) if end._sends else end.lease(30).__enter__()


def take(reader: Stream, count: int, k: int) -> None:
    with reader.lease(30) as (array,):
        np.testing.assert_array_equal(array, message(count, k)[0])


@pytest.mark.parametrize("count", [0, SMALL, LARGE])
def test_messages_arrive_whole_and_in_order(count: int) -> None:
    writer, reader = opened(count)
    sending = threading.Thread(target=lambda: [writer.send(message(count, k)) for k in range(20)])
    sending.start()
    for k in range(20):
        take(reader, count, k)
    sending.join()
    assert not reader.ready() and writer.waited_ns[1] == 0 == reader.waited_ns[0]


@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_as_many_as_there_are_slots_never_wait(count: int) -> None:
    writer, reader = opened(count, slots=3)
    for k in range(3):
        writer.send(message(count, k), timeout=0)
    with pytest.raises(TimeoutError):
        writer.send(message(count, 3), timeout=0.2)  # though all have long arrived
    take(reader, count, 0)
    writer.send(message(count, 3), timeout=30)
    for k in (1, 2, 3):
        take(reader, count, k)


@pytest.mark.parametrize("count", [0, SMALL, LARGE])
def test_what_was_received_belongs_to_the_receiver(count: int) -> None:
    """No later message changes it, and the memory of a large one is used again when it is gone."""
    writer, reader = opened(count)
    kept, used = [], set()
    for k in range(12):
        writer.send(message(count, k))
        (array,) = reader.receive(30)
        used.add(array.ctypes.data)
        if k < 4:
            kept.append(array[1:])  # also a view of it keeps the memory
        del array
    for k, array in enumerate(kept):
        np.testing.assert_array_equal(array, message(count, k)[0][1:])
    if count == LARGE:
        assert len(used) <= 4 + 2 + 1 and all(address % 64 == 0 for address in used)


def test_a_message_crosses_while_its_reader_computes() -> None:
    writer, reader = connected(HUGE, slots=1)
    writer.send(message(HUGE, 0))
    library, end = reader._library, reader._end
    assert library.hocket_tcp_await(end, 0, 30_000_000_000) == 1  # nobody reads but the pump
    take(reader, HUGE, 0)
    assert reader.waited_ns[1] < 1e9


def test_both_sides_send_64_mib_at_once() -> None:
    pairs = [connected(HUGE, slots=1) for _ in range(2)]
    for writer, _ in pairs:
        writer.send(message(HUGE, 5), timeout=0)
    for _, reader in pairs:
        take(reader, HUGE, 5)


def test_both_sides_send_many_at_once_in_two_threads() -> None:
    (there, theirs), (back, mine) = connected(LARGE), connected(LARGE)

    def side(writer: Stream, reader: Stream) -> None:
        for k in range(20):
            writer.send(message(LARGE, k), timeout=30)
            take(reader, LARGE, k)

    other = threading.Thread(target=side, args=(back, theirs))
    other.start()
    side(there, mine)
    other.join()


@pytest.mark.parametrize("closer", [0, 1])
@pytest.mark.parametrize("waiter", [0, 1])
def test_closing_wakes_both_ends(closer: int, waiter: int) -> None:
    ends = connected(SMALL)
    ended = threading.Event()

    def wait() -> None:
        until_closed(*ends[waiter : waiter + 1])
        ended.set()

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    ends[closer].close()
    assert ended.wait(10)
    thread.join()


def test_an_end_without_a_connection_can_be_closed() -> None:
    for k in (0, 1):
        end = opened(SMALL)[k]
        end.close()
        with pytest.raises(Closed):
            end.lease().__enter__() if k else end.send(message(SMALL, 0))


def test_a_connection_that_fails_says_why() -> None:
    writer = Stream([((SMALL,), np.float32)], 1, sends=True)
    name = ConnectionId("link", "nobody")
    LISTENER.begin("tcp:127.0.0.1:1", name, 30, writer.attach, writer.fail)
    wait_until(lambda: writer._library.hocket_tcp_state(writer._end) == 2)
    with pytest.raises(Closed, match="refused"):
        writer.send(message(SMALL, 0), timeout=30)


KILLED = """
import sys, time
import numpy as np
from hocket.system.network import Network
from hocket.system.network.greeting import ConnectionId
from hocket.system.network.listener import Listener
from hocket.system.network.stream import Stream

listener = Listener(Network(secret=bytes.fromhex(sys.argv[2])))
sends, count = sys.argv[3] == "sends", int(sys.argv[4])
stream = Stream([((count,), np.float32)], 1, sends=sends)
name = ConnectionId("link", "killed", 1)
listener.begin(sys.argv[1], name, 30, stream.attach, stream.fail)
if sends:
    stream.send([np.zeros(count, np.float32)])
print("here", flush=True)
time.sleep(100)
"""


@pytest.mark.parametrize("sends", [True, False])
def test_a_killed_process_ends_the_waits_of_the_other(sends: bool) -> None:
    """It is killed in the middle of a message: more than 64 MiB are under way."""
    specs, here = (
        [((4 * HUGE,), np.float32)],
        Stream([((4 * HUGE,), np.float32)], 1, sends=not sends),
    )
    expected = LISTENER.expect("link", "killed")
    secret = LISTENER._network.secret.hex()
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, expected.address, secret, "sends" if sends else "takes",
         str(4 * HUGE)],
        stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert process.stdout and process.stdout.readline() == b"here\n"
    expected.open(1, here.attach, here.fail)
    wait_until(lambda: here.is_connected)
    if not sends:
        here.send([np.zeros(*specs[0])])
    process.kill()
    until_closed(here)
    process.wait()
    process.stdout.close()


def test_what_has_arrived_before_the_end_is_there() -> None:
    writer, reader = connected(SMALL)
    writer.send(message(SMALL, 3))
    wait_until(reader.ready)
    writer.close()
    take(reader, SMALL, 3)
    with pytest.raises(Closed):
        reader.lease(30).__enter__()


def test_a_delay_counts_from_the_arrival() -> None:
    writer, reader = connected(SMALL, delay=0.2)
    writer.send(message(SMALL, 0))
    sent = time.monotonic()
    time.sleep(0.1)
    assert not reader.ready()
    take(reader, SMALL, 0)
    assert 0.19 < time.monotonic() - sent < 5
    writer.send(message(SMALL, 1))
    wait_until(reader.ready)
    take(reader, SMALL, 1)


def test_an_event_for_every_message() -> None:
    writer, reader = connected(SMALL)
    event = ThreadEvent()
    reader.wake(event)
    for k in range(3):
        count = event.count()
        writer.send(message(SMALL, k))
        wait_until(lambda count=count: event.count() > count)
        assert reader.ready()
        take(reader, SMALL, k)


def test_arrays_of_another_kind_are_refused() -> None:
    writer, _ = opened(SMALL)
    with pytest.raises(ValueError, match=r"this link carries float32\(4,\), found int32\(4,\)"):
        writer.send([np.arange(4, dtype=np.int32)])


def test_a_peer_that_sends_without_credit_is_cut_off() -> None:
    """Nothing is written beyond the slots, whatever the other side sends."""
    expected = LISTENER.expect("link", "greedy")
    reader = Stream([((SMALL,), np.float32)], 1, sends=False)
    expected.open(0, reader.attach, reader.fail)
    greedy = LISTENER.connect(expected.address, ConnectionId("link", "greedy"), 30).socket
    wait_until(lambda: reader.is_connected)
    greedy.setblocking(True)
    greedy.sendall(message(16, 0)[0].tobytes() * 3)  # three messages of 64 bytes
    with reader.lease(30):
        reader._library.hocket_tcp_watch(reader._end)
        wait_until(lambda: not reader.is_connected)
    with pytest.raises(Closed):
        reader.lease(30).__enter__()
    greedy.close()


def test_a_forgotten_stream_closes_its_connection() -> None:
    writer, reader = connected(LARGE)
    writer.send(message(LARGE, 0))
    reader.wake(ThreadEvent())
    del writer
    gc.collect()
    until_closed(reader)
    files = len(os.listdir("/proc/self/fd"))
    del reader
    wait_until(lambda: gc.collect() is not None and len(os.listdir("/proc/self/fd")) < files)
