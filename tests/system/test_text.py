"""Numbers as people read them."""

from __future__ import annotations

import pytest

from hocket.system.text import bytes_text


@pytest.mark.parametrize(
    ("n", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 * 2**30, "5.0 GiB")]
)
def test_bytes_text(n: int, text: str) -> None:
    assert bytes_text(n) == text
