"""The newest version: one writer, many readers, and nobody waits for anybody."""

from __future__ import annotations

import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hocket.runtime.channels.packing import Packing
from hocket.runtime.free.newest import SLOTS, NewestHere, NewestShared
from hocket.system.shared_memory import MemoryFile

LIKE = [jax.ShapeDtypeStruct((300,), jnp.float32), jax.ShapeDtypeStruct((), jnp.int32)]
BEGIN = 4096


def message(number: int) -> list[np.ndarray]:
    return [np.full(300, number, np.float32), np.array(number, np.int32)]


def shared(ends: int = 2) -> list[NewestShared]:
    """Return ends that share memory, in which something else comes first."""
    file = MemoryFile.create(BEGIN + NewestShared.nbytes(LIKE))
    return [NewestShared(file.memory, BEGIN, LIKE) for _ in range(ends)]


def numbers(newest: Any) -> tuple[int, set[float]]:
    """Return the version that an end reads, and all numbers in its message."""
    version, arrays = newest.read()
    return version, {float(x) for array in arrays for x in np.ravel(array)}


def test_in_one_process_it_is_the_arrays_themselves() -> None:
    newest, arrays = NewestHere(), message(3)
    newest.write(3, arrays)
    version, read = newest.read()
    assert version == 3 and read is arrays
    newest.empty()
    assert newest.read() == (0, [])


def test_every_reader_gets_the_newest() -> None:
    writer, *readers = shared(3)
    for version in range(2 * SLOTS):
        writer.write(version, message(version))
        assert numbers(readers[0]) == (version, {version})
    last = 2 * SLOTS - 1
    assert numbers(readers[1]) == numbers(readers[1]) == (last, {last})


def test_what_was_read_does_not_change() -> None:
    writer, reader = shared()
    writer.write(1, message(1))
    _, arrays = reader.read()
    for version in range(2, 2 + SLOTS):
        writer.write(version, message(version))
    assert all((array == 1).all() for array in arrays)


def test_a_slow_reader_reads_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its copy may be half of one message and half of another by then."""
    writer, reader = shared()
    writer.write(1, message(1))
    from_slot, late = Packing.from_slot, iter(range(2, 2 + SLOTS))

    def slowly(self: Packing, arrays: Any, *, packed: bool) -> Any:
        for version in late:
            writer.write(version, message(version))
        return from_slot(self, arrays, packed=packed)

    monkeypatch.setattr(Packing, "from_slot", slowly)
    assert numbers(reader) == (1 + SLOTS, {1 + SLOTS})


def test_after_empty_nothing_older_is_read() -> None:
    writer, reader = shared()
    writer.write(7, message(7))
    reader.empty()
    read: list[Any] = []
    waiting = threading.Thread(target=lambda: read.append(numbers(reader)))
    waiting.start()
    writer.write(2, message(2))
    waiting.join(60)
    assert read == [(2, {2})]


def test_readers_at_work_beside_the_writer_get_whole_messages() -> None:
    writer, *readers = shared(3)
    writer.write(0, message(0))
    last, read = 300, [list[tuple[int, set[float]]]() for _ in readers]

    def follow(reader: NewestShared, mine: list[tuple[int, set[float]]]) -> None:
        while not mine or mine[-1][0] < last:
            mine.append(numbers(reader))

    threads = [threading.Thread(target=follow, args=x) for x in zip(readers, read, strict=True)]
    for thread in threads:
        thread.start()
    for version in range(1, last + 1):
        writer.write(version, message(version))
    for thread in threads:
        thread.join(60)
    for mine in read:
        versions = [version for version, _ in mine]
        assert versions == sorted(versions) and versions[-1] == last
        assert all(values == {version} for version, values in mine)
