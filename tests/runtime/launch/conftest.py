from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults import left_behind


@pytest.fixture
def nothing_is_left() -> Iterator[None]:
    """Check that a test leaves no process and no shared memory behind."""
    before = left_behind()
    yield
    assert left_behind() <= before
