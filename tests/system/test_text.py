"""Numbers and names as people read them."""

from __future__ import annotations

import pytest

from hocket.system.text import bytes_text, names_text, seconds_text


@pytest.mark.parametrize(
    ("n", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 * 2**30, "5.0 GiB")]
)
def test_bytes_text(n: int, text: str) -> None:
    assert bytes_text(n) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(12e-6, "12 us"), (1.5e-6, "1.5 us"), (0.0015, "1.5 ms"), (0.9999, "1.0 s"), (61, "61.0 s")],
)
def test_seconds_text(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


NAMES = {
    "": [],
    "n0": ["n0"],
    "n0, n1": ["n0", "n1"],
    "n0 to n2, m1": ["n0", "n1", "n2", "m1"],
    "n08 to n10": ["n08", "n09", "n10"],
    "n8 to n10": ["n8", "n9", "n10"],
    "10.0.0.1 to 10.0.0.3": ["10.0.0.1", "10.0.0.2", "10.0.0.3"],
    "gpu-1a to gpu-3a": ["gpu-1a", "gpu-2a", "gpu-3a"],
    "n0, n2, n4": ["n0", "n2", "n4"],
    "a, b, c, d, e and 2 more, the last g": list("abcdefg"),
}


@pytest.mark.parametrize("text", NAMES)
def test_names_text(text: str) -> None:
    assert names_text(NAMES[text]) == text
