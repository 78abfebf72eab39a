"""Numbers and lists of names as text for people."""

from __future__ import annotations

import re
from collections.abc import Iterable

MOST_NAMES = 6
"""The most names, or runs of numbered names, that `names_text` writes out."""


def bytes_text(n: float) -> str:
    """Return a number of bytes as text for people: `512 B`, `1.5 KiB`."""
    for unit in ("B", "KiB", "MiB"):
        if n < 1024:
            return f"{n:.0f} B" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} GiB"


def seconds_text(seconds: float) -> str:
    """Return a short time as text for people: `12 us`, `1.5 ms`, `2.0 s`."""
    for unit, factor in (("us", 1e6), ("ms", 1e3)):
        if (n := seconds * factor) < 999.5:
            return f"{n:.0f} {unit}" if n >= 10 else f"{n:.1f} {unit}"
    return f"{seconds:.1f} s"


def names_text(names: Iterable[str]) -> str:
    """Return names as short text for people: `n0 to n7, m1`. Of very many, only some are named."""
    runs: list[list[str]] = []
    for name in names:
        if runs and _successor(runs[-1][-1]) == name:
            runs[-1].append(name)
        else:
            runs.append([name])
    texts = [x for run in runs for x in (run if len(run) < 3 else [f"{run[0]} to {run[-1]}"])]
    if len(texts) <= MOST_NAMES:
        return ", ".join(texts)
    shown = ", ".join(texts[: MOST_NAMES - 1])
    return f"{shown} and {len(texts) - MOST_NAMES + 1} more, the last {texts[-1]}"


def _successor(name: str) -> str:
    """Return the name with its last number increased by one: `n1` for `n0`, `a02` for `a01`."""
    match = re.fullmatch(r"(.*?)(\d+)(\D*)", name, re.DOTALL)
    if match is None:
        return ""
    head, number, tail = match.groups()
    return f"{head}{int(number) + 1:0{len(number)}d}{tail}"
