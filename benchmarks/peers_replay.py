"""Measure cpprb's PrioritizedReplayBuffer for `replay.py`, in the way that hocket's side uses too.

    python -m venv peers && peers/bin/pip install cpprb==11.0.0 numpy
    echo '{"case": "cart", "operation": "sample 256"}' | peers/bin/python benchmarks/peers_replay.py

Imports nothing of hocket. Reads a JSON object from each input line and answers with a line: the
microseconds of a call (p50 and p99) and rows per second, or for `memory` the bytes by which this
process grew per row. Before every measurement the table is full, with new random priorities.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

ALPHA, BETA = 0.6, 0.4
BLOCK = 256
"""How many rows fill a table at once, and how many priorities an update changes."""
MEMORY_ROWS = 1 << 20

Rows = dict[str, np.ndarray[Any, Any]]
Call = Callable[[int], object]
"""A call to be timed; its argument counts the calls before it."""


class Case(NamedTuple):
    capacity: int
    columns: dict[str, tuple[str, tuple[int, ...]]]


REST = {"action": ("int32", ()), "reward": ("float32", ()), "done": ("float32", ())}
CASES = {
    "cart": Case(1 << 17, {"obs": ("float32", (4,)), "next_obs": ("float32", (4,)), **REST}),
    "atari": Case(1 << 13, {"obs": ("uint8", (84, 84, 4)), **REST}),
}


CAPACITY = {"cart": 1 << 15, "atari": 1 << 12}
"""Rows of tables at a server. They are fewer, because some take long to fill."""


class Replay(NamedTuple):
    """A table of any party, with its operations."""

    fill: Callable[[Rows, np.ndarray[Any, Any]], object]
    """Add rows with these priorities."""
    operations: dict[str, tuple[int, Callable[[], Call]]]
    """For each operation its rows per call, and what prepares it once the table is full."""


def main() -> None:
    serve(cpprb)


def serve(make: Callable[[Rows, int], Replay], capacities: dict[str, int] | None = None) -> None:
    """Answer input lines. With `capacities` given, tables are filled only once."""
    held: dict[str, Replay] = {}
    for line in sys.stdin:
        print(json.dumps(answer(make, held, capacities, **json.loads(line))), flush=True)


def answer(
    make: Callable[[Rows, int], Replay], held: dict[str, Replay],
    capacities: dict[str, int] | None, case: str, operation: str, seconds: float = 0.7,
) -> dict[str, float]:  # fmt: skip
    rows, capacity = random_rows(case), (capacities or {}).get(case, CASES[case].capacity)
    if operation == "memory":
        before = resident()
        replay = make(rows, MEMORY_ROWS)
        fill(replay, rows, MEMORY_ROWS)
        return {"bytes": (resident() - before) / MEMORY_ROWS}
    is_new = case not in held
    if is_new:
        held[case] = make(rows, capacity)
    if is_new or not capacities:
        fill(held[case], rows, capacity)
    num, prepare = held[case].operations[operation]
    each = np.array(timed(prepare(), seconds))
    p50, p99 = np.quantile(each, [0.5, 0.99])
    return {"p50": 1e6 * p50, "p99": 1e6 * p99, "rate": num * len(each) / each.sum()}


def timed(call: Call, seconds: float) -> list[float]:
    for i in range(5):
        call(i)
    times: list[float] = []
    clock = time.perf_counter
    until = clock() + seconds
    while (start := clock()) < until:
        call(len(times))
        times.append(clock() - start)
    return times


def fill(replay: Replay, rows: Rows, capacity: int) -> None:
    rng = np.random.default_rng(1)
    for _ in range(capacity // BLOCK):
        replay.fill(rows, random_priorities(rng))


def updates(draw_keys: Callable[[], Any], update: Callable[[Any, Any], object]) -> Call:
    """Return a call that updates 64 batches in turn, with different priorities each time."""
    rng = np.random.default_rng(2)
    keys = [draw_keys() for _ in range(64)]
    priorities = [random_priorities(rng) for _ in range(63)]
    return lambda i: update(keys[i % 64], priorities[i % 63])


def random_priorities(rng: np.random.Generator) -> np.ndarray[Any, Any]:
    return rng.random(BLOCK, np.float32) + np.float32(0.1)


def random_rows(case: str) -> Rows:
    """Make rows. Images are flat with some sprites, so that they can be compressed."""
    rng = np.random.default_rng(0)
    rows = {
        name: rng.integers(0, 256, (BLOCK, *shape)).astype(dtype)
        for name, (dtype, shape) in CASES[case].columns.items()
    }
    if case == "atari":
        images = rows["obs"]
        sprites = images[:, :6, :6].copy()
        images[:] = 87
        images[:, :12] = 0
        for image, sprite in zip(images, sprites, strict=True):
            for y, x in rng.integers(0, 76, (8, 2)):
                image[y : y + 6, x : x + 6] = sprite
    return rows


def resident(pid: str = "self") -> int:
    """Return the bytes of a process that are in memory."""
    with open(f"/proc/{pid}/statm") as text:
        return int(text.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cpprb(rows: Rows, capacity: int) -> Replay:
    from cpprb import PrioritizedReplayBuffer  # pyright: ignore[reportMissingImports]

    # cpprb stores a number as an array of length 1.
    about = {name: {"shape": x.shape[1:] or 1, "dtype": x.dtype} for name, x in rows.items()}
    table = PrioritizedReplayBuffer(capacity, about, alpha=ALPHA)
    one, many = ({name: x[:n] for name, x in rows.items()} for n in (1, 64))

    def draw_keys() -> Any:
        return table.sample(256, beta=BETA)["indexes"]

    return Replay(
        fill=lambda rows, priority: table.add(**rows, priorities=priority),
        operations={
            "add 1": (1, lambda: lambda i: table.add(**one)),
            "add 64": (64, lambda: lambda i: table.add(**many)),
            "sample 256": (256, lambda: lambda i: table.sample(256, beta=BETA)),
            "update 256": (256, lambda: updates(draw_keys, table.update_priorities)),
        },
    )


if __name__ == "__main__":
    main()
