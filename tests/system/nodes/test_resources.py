"""The free memory and space on a machine, and when they are too little."""

from __future__ import annotations

import tempfile

from hocket.system.nodes.resources import SHARED, free_bytes, shortages


def test_this_machine_tells_what_is_free() -> None:
    free = free_bytes()
    assert free.keys() >= {"memory", SHARED, tempfile.gettempdir()}
    assert all(nbytes > 0 for nbytes in free.values())


def test_too_little_is_told_with_a_cure() -> None:
    enough = {"memory": 8 << 30, SHARED: 1 << 30, "/tmp": 1 << 30}
    assert shortages(enough) == []
    memory, shared, folder = shortages({"memory": 1 << 20, SHARED: 1 << 25, "/tmp": 0})
    assert memory == "its memory has only 1.0 MiB free: end other programs there."
    assert shared.startswith("`/dev/shm` has only 32.0 MiB free") and "--shm-size" in shared
    assert folder.startswith("`/tmp` has only 0 B free") and "TMPDIR" in folder
