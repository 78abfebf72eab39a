"""The ring between two real processes. This file is also the program of the second one."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jax
import ml_dtypes
import numpy as np
import pytest

from hocket.system.events import Closed
from hocket.system.native import library
from hocket.system.ring import Ring, Spec
from hocket.system.shared_memory import MemoryFile

SLOTS = 3
DTYPES = [np.bool_, np.int8, np.int32, np.uint32, np.float16, np.float32, ml_dtypes.bfloat16]


def random_specs(seed: int) -> list[Spec]:
    rng = np.random.default_rng(seed)
    return [
        (tuple(map(int, rng.integers(0, 5, rng.integers(0, 4)))), DTYPES[rng.integers(len(DTYPES))])
        for _ in range(rng.integers(0, 7))
    ]


def random_message(specs: list[Spec], seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 100, shape).astype(dtype) for shape, dtype in specs]


def make_rings(file: MemoryFile, specs: list[Spec]) -> tuple[Ring, Ring]:
    """Return a ring for each direction."""
    return (
        Ring(file.memory, 0, SLOTS, specs),
        Ring(file.memory, Ring.nbytes(SLOTS, specs), SLOTS, specs),
    )


def echo(there: Ring, back: Ring) -> None:
    """Send everything back until the ring is closed."""
    while True:
        try:
            with there.lease(timeout=60) as message:
                back.send(message, timeout=60)
        except Closed:
            return


@contextmanager
def echoing(seed: int) -> Iterator[tuple[Ring, Ring, list[Spec]]]:
    specs = random_specs(seed)
    file = MemoryFile.create(2 * Ring.nbytes(SLOTS, specs))
    there, back = make_rings(file, specs)
    arguments = [sys.executable, __file__, str(file.fd), str(file.nbytes), str(seed)]
    other = subprocess.Popen(arguments, pass_fds=[file.fd])
    try:
        yield there, back, specs
    finally:
        there.close()
        back.close()
        assert other.wait(60) == 0
        file.close()


def test_each_side_may_be_ahead_of_what_the_other_is_told() -> None:
    """The host may go on to the next slot while its device still fills or reads this one."""
    file = MemoryFile.create(Ring.nbytes(2, []))
    ring, tell = Ring(file.memory, 0, 2, []), library()
    assert [ring.free_slot(), ring.free_slot()] == [0, 1]
    for wait in (ring.free_slot, ring.full_slot):  # both are acquired, neither is published
        with pytest.raises(TimeoutError):
            wait(timeout=0.01)
    tell.hocket_ring_publish(ring.address)
    tell.hocket_ring_publish(ring.address)
    assert [ring.full_slot(), ring.full_slot()] == [0, 1]
    with pytest.raises(TimeoutError):  # both slots are leased
        ring.free_slot(timeout=0.01)
    tell.hocket_ring_release(ring.address)
    assert ring.free_slot() == 0
    with pytest.raises(TimeoutError):
        ring.free_slot(timeout=0.01)


@pytest.mark.parametrize("seed", range(3))
def test_messages_arrive_in_order_and_whole(seed: int) -> None:
    with echoing(seed) as (there, back, specs):
        for number in range(5 * SLOTS + 1):  # several times around the ring
            sent = random_message(specs, number)
            there.send(sent, timeout=60)
            with back.lease(timeout=60) as received:
                for a, b in zip(sent, received, strict=True):
                    assert a.dtype == b.dtype
                    np.testing.assert_array_equal(a, b)
        assert there.messages == back.messages == 5 * SLOTS + 1


def test_a_full_ring_holds_the_sender_back() -> None:
    """Nobody reads before all slots are full, and more messages follow."""
    with echoing(seed=1) as (there, back, specs):
        numbers = range(10 * SLOTS)
        sender = threading.Thread(
            target=lambda: [there.send(random_message(specs, n), timeout=60) for n in numbers]
        )
        sender.start()
        while back.messages < SLOTS:
            pass
        assert back.messages == SLOTS
        assert there.messages <= 2 * SLOTS
        for n in numbers:
            with back.lease(timeout=60) as received:
                for a, b in zip(random_message(specs, n), received, strict=True):
                    np.testing.assert_array_equal(a, b)
        sender.join(60)
        assert sum(there.waited_ns) > 0


def one_process_ring(specs: list[Spec]) -> Ring:
    return Ring(MemoryFile.create(Ring.nbytes(SLOTS, specs)).memory, 0, SLOTS, specs)


def test_the_data_of_keys() -> None:
    data = np.asarray(jax.random.key_data(jax.random.split(jax.random.key(0), 4)))
    ring = one_process_ring([(data.shape, data.dtype)])
    ring.send([data])
    with ring.lease() as (received,):
        np.testing.assert_array_equal(received, data)


def test_a_wait_ends_with_a_timeout() -> None:
    ring = one_process_ring([((2,), np.float32)])
    with pytest.raises(TimeoutError, match=r"waited 0\.01 s"), ring.lease(timeout=0.01):
        pass
    for _ in range(SLOTS):
        ring.send([np.zeros(2, np.float32)])
    with pytest.raises(TimeoutError):
        ring.send([np.zeros(2, np.float32)], timeout=0.01)
    assert ring.messages == SLOTS
    assert min(ring.waited_ns) > 0


def test_what_does_not_fit_is_refused_and_the_slot_kept() -> None:
    ring = one_process_ring([((2,), np.float32)])
    with pytest.raises(ValueError, match=r"carries float32\(2,\), found float32\(1,\)"):
        ring.send([np.zeros(1, np.float32)])
    with pytest.raises(ValueError, match=r"carries float32\(2,\), found int32\(2,\)"):
        ring.send([np.zeros(2, np.int32)])
    assert ring.messages == 0
    ring.send([np.ones(2, np.float32)])
    with ring.lease() as (received,):
        np.testing.assert_array_equal(received, 1.0)
    with pytest.raises(ValueError, match="multiple of 64"):
        Ring(MemoryFile.create(4096).memory, 8, 1, [])


@pytest.mark.parametrize("full", [True, False])
def test_close_wakes_whoever_waits(full: bool) -> None:
    ring = one_process_ring([((), np.float32)])
    if full:
        for _ in range(SLOTS):
            ring.send([np.zeros((), np.float32)])

    def receive() -> None:
        with ring.lease():
            pass

    raised: list[type[Exception]] = []
    wait = (lambda: ring.send([np.zeros((), np.float32)])) if full else receive
    waiting = threading.Thread(target=catch, args=(wait, raised))
    waiting.start()
    ring.close()
    waiting.join(60)
    assert raised == [Closed]
    with pytest.raises(Closed):
        receive()
    ring.initialise()
    assert ring.messages == 0


def catch(fn: Callable[[], None], raised: list[type[Exception]]) -> None:
    try:
        fn()
    except Closed as error:
        raised.append(type(error))


if __name__ == "__main__":
    fd, nbytes, seed = map(int, sys.argv[1:])
    echo(*make_rings(MemoryFile.attach(fd, nbytes), random_specs(seed)))
