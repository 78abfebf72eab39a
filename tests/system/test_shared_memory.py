"""Memory that processes share: refused if there is not enough, and freed when nobody looks."""

from __future__ import annotations

import numpy as np
import pytest

from hocket.system.shared_memory import MemoryFile, Space, pages


def test_memory_that_is_not_there_is_refused() -> None:
    with pytest.raises(OSError, match=r"cannot reserve .* MiB of shared memory"):
        MemoryFile.create(2**50)


def test_memory_outlives_its_close_for_those_who_look_into_it() -> None:
    file = MemoryFile.create(4096)
    there = MemoryFile.attach(file.fd, 4096)
    view = np.ndarray((4,), np.int32, buffer=file.memory)
    file.memory[0] = 7
    assert there.memory[0] == 7
    file.close()
    assert view[0] == 7


def test_a_space_is_a_part_of_a_file() -> None:
    file = MemoryFile.create(8192)
    whole = Space(file, 0, 8192)
    part = whole.part(4096, 64)
    assert part and (part.address, part.nbytes) == (file.address + 4096, 64)
    inner = part.part(32, 32)
    assert inner and inner.offset == 4096 + 32
    assert whole.part(0, 0) is None
    file.close()


def test_memory_begins_as_zeros() -> None:
    file = MemoryFile.create(100)
    assert file.memory[:] == bytes(100)
    file.close()


def test_pages_are_whole() -> None:
    assert [pages(n) for n in (0, 1, 4096, 4097)] == [0, 4096, 4096, 8192]
