from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import left_behind


@pytest.fixture
def nothing_is_left() -> Iterator[None]:
    """Check that a test leaves no process and no shared memory behind."""
    before = left_behind()
    yield
    assert left_behind() <= before


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, because that of a Unix socket has room for 107 bytes."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)
