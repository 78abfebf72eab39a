"""Numbers as text for people."""

from __future__ import annotations


def bytes_text(n: float) -> str:
    """Return a number of bytes as text for people: `512 B`, `1.5 KiB`."""
    for unit in ("B", "KiB", "MiB"):
        if n < 1024:
            return f"{n:.0f} B" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} GiB"
