"""Measure replay: hocket's table beside cpprb's, its service beside Reverb's, and many actors.

    python -m venv peers && peers/bin/pip install cpprb==11.0.0 numpy
    python3.11 -m venv reverb && reverb/bin/pip install 'dm-reverb[tensorflow]==0.14.0' 'numpy<2'
    python benchmarks/replay.py --peers peers/bin/python --reverb reverb/bin/python
    python benchmarks/replay.py process --rounds 1       # one part, without peers

process: a table in one process, beside cpprb's PrioritizedReplayBuffer. service: a server and a
client in another process, over shared memory and over TCP, beside Reverb over gRPC. one_core:
server and client share a core. actors: 4 and 16 processes insert while one samples and updates;
`slowest` is the slowest actor's share of the mean. memory: the growth of a process per row.

cart: 2**17 transitions of 44 bytes. atari: 2**13 transitions of 28,236 bytes. The tables are full,
with random priorities, and rows are drawn by priority. Each party has a process of its own, and
they take turns. A value is the median microseconds of a call (p50); a ratio above 1 means that
hocket is faster, in p50. The quieter half of the rounds counts; `others` is the number of cores
that the rest of the machine used meanwhile. In `service`, tables have 2**15 and 2**12 rows, because
Reverb takes long to fill, and ratios compare rows per second with Reverb's fastest way.

In `process`, the parties divide the work differently. cpprb raises priorities to alpha in an
update, and makes importance weights in a sample. hocket leaves both to the caller; `with alpha` and
`with weights` do the same work on both sides. hocket's keys tell which rows were replaced; cpprb's
indexes do not. `with out` writes over the previous batch, which cpprb cannot do. Added rows have
the highest priority. Updates change the priorities: cpprb is faster if they stay the same.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import replay_service
from peers_replay import ALPHA, BETA, CASES, Replay, Rows, serve, updates
from replay_service import gate
from split import Meter, asked, quieter_half, tell

OPERATIONS = {
    "add 1": ("add 1",),
    "add 64": ("add 64",),
    "sample 256": ("sample 256", "sample 256 with out", "sample 256 with out, with weights"),
    "update 256": ("update 256", "update 256 with alpha"),
}
"""For each operation of the peer, the operations of hocket that are compared with it."""
HOCKET, PEER = "hocket", "cpprb"
SECONDS = 0.7
PARTS = ("process", "service", "one_core", "actors", "memory")
INSTALL = "python -m venv peers && peers/bin/pip install cpprb==11.0.0 numpy"

Ask = Callable[..., dict[str, float]]
Round = dict[str, dict[str, float]]
"""The figures of a round, by party and operation."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", default=PARTS, help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--peers", help="the Python that has cpprb; if not given, only hocket")
    parser.add_argument("--reverb", help="the Python that has Reverb; if not given, only hocket")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of a measurement")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"unknown parts {sorted(unknown)}: choose from {', '.join(PARTS)}")
    if options.serve:
        serve(hocket)
        return
    peer = f"{PEER} {version(options.peers)}" if options.peers else ""
    for part in options.parts:
        if part == "process":
            process(options, peer)
        elif part == "service":
            replay_service.service(options.reverb, options.rounds, options.seconds)
        elif part == "one_core":
            replay_service.one_core(options.seconds)
        elif part == "actors":
            replay_service.actors((4, 16), 4 * options.seconds)
        else:
            memory(options.peers, peer)
            replay_service.memory()


def process(options: argparse.Namespace, peer: str) -> None:
    for case in CASES:
        by_operation = take_turns(case, options.rounds, options.peers, options.seconds)
        for operation, rounds in by_operation.items():
            compare(case, operation, rounds, peer)


def version(python: str) -> str:
    words = f"import {PEER}, importlib.metadata; print(importlib.metadata.version('{PEER}'))"
    done = subprocess.run([python, "-c", words], capture_output=True, text=True, check=False)
    if done.returncode:
        why = done.stderr.splitlines()[-1]
        sys.exit(f"{why}. Install the peer in an environment of its own:\n{INSTALL}")
    return done.stdout.strip()


def take_turns(case: str, rounds: int, peers: str | None, seconds: float) -> dict[str, list[Round]]:
    """Measure every party in each round; return the rounds of each operation."""
    by_operation: dict[str, list[Round]] = {operation: [] for operation in OPERATIONS}
    meter = Meter()
    with ExitStack() as stack:
        asks = {HOCKET: stack.enter_context(served(None))}
        if peers:
            asks[PEER] = stack.enter_context(served(peers))
        for _ in range(rounds):
            for operation, ours in OPERATIONS.items():
                times_of: Round = {}
                turns = [(HOCKET, name) for name in ours] + [(PEER, operation)] * bool(peers)
                for party, name in turns:
                    meter.cores()
                    times = asks[party](case=case, operation=name, seconds=seconds)
                    times_of[f"{party}, {name}"] = {**times, "others": meter.cores()[1]}
                by_operation[operation].append(times_of)
    return by_operation


def compare(case: str, operation: str, rounds: Sequence[Round], peer: str) -> None:
    quiet = quieter_half(rounds, lambda times: max(each["others"] for each in times.values()))
    others = round(max(each["others"] for times in quiet for each in times.values()), 2)
    for name in quiet[0]:
        middle = {
            what: statistics.median(times[name][what] for times in quiet)
            for what in ("p50", "p99", "rate")
        }
        more: dict[str, Any] = {}
        if peer and name.startswith(HOCKET):
            ratios = [times[f"{PEER}, {operation}"]["p50"] / times[name]["p50"] for times in quiet]
            spread = [round(min(ratios), 2), round(max(ratios), 2)]
            more = {"ratio": round(statistics.median(ratios), 2), "spread": spread, "against": peer}
        tell(
            f"{case}: {name}", round(middle["p50"], 2), "us", p99=round(middle["p99"], 2),
            rows_per_s=round(middle["rate"]), **more, **gate(f"{case}: {name}"), others=others,
        )  # fmt: skip


def memory(peers: str | None, peer: str) -> None:
    bytes_of = {}
    for party, python in {HOCKET: None, **({PEER: peers} if peers else {})}.items():
        with served(python) as ask:
            bytes_of[party] = ask(case="cart", operation="memory")["bytes"]
    for party, size in bytes_of.items():
        more = {"ratio": round(bytes_of[PEER] / size, 2), "against": peer} if peer else {}
        about = more if party == HOCKET else {}
        tell(f"cart: {party}, memory of a 44-byte transition", round(size, 1), "B", **about)


def served(peers: str | None) -> AbstractContextManager[Ask]:
    """Open a process of the peer or of hocket, where `ask(case=..., operation=...)` measures."""
    script = str(Path(__file__).with_name("peers_replay.py"))
    return asked([peers, script] if peers else [sys.executable, __file__, "--serve"])


def hocket(rows: Rows, capacity: int) -> Replay:
    from hocket.replay.store.schema import Schema
    from hocket.replay.store.table import Batch, Table

    table = Table(Schema.of(rows), capacity)
    one, many = ({name: x[:n] for name, x in rows.items()} for n in (1, 64))
    held: list[Batch | None] = [None]

    def sample(_: int) -> Batch:
        held[0] = batch = table.sample(256, out=held[0])
        return batch

    def weighted(_: int) -> object:
        weight = (capacity * sample(0).probability) ** -BETA
        return weight / weight.max()

    def draw_keys() -> Any:
        return table.sample(256).keys

    def raise_and_update(keys: Any, priority: Any) -> object:
        return table.update(keys, priority**ALPHA)

    return Replay(
        fill=lambda rows, priority: table.insert(rows, priority**ALPHA),
        operations={
            "add 1": (1, lambda: lambda i: table.insert(one)),
            "add 64": (64, lambda: lambda i: table.insert(many)),
            "sample 256": (256, lambda: lambda i: table.sample(256)),
            "sample 256 with out": (256, lambda: sample),
            "sample 256 with out, with weights": (256, lambda: weighted),
            "update 256": (256, lambda: updates(draw_keys, table.update)),
            "update 256 with alpha": (256, lambda: updates(draw_keys, raise_and_update)),
        },
    )


if __name__ == "__main__":
    main()
