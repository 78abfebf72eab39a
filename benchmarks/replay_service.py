"""Measure replay as a service, beside Reverb; the parts of `replay.py` that have a server."""

from __future__ import annotations

import multiprocessing
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from peers_replay import (
    ALPHA,
    CAPACITY,
    CASES,
    Replay,
    Rows,
    fill,
    random_rows,
    resident,
    serve,
    timed,
    updates,
)
from split import Meter, asked, quieter_half, tell

from hocket.replay import Batch, Schema, connect

CARRIERS = ("shm", "tcp")
REVERB = "Reverb 0.14"
OPERATIONS = {
    "insert 1": ("insert 1",),
    "insert 64": ("insert 64", "insert 64, chunks of 16"),
    "sample 256": ("sample 256", "sample 256, client.sample"),
    "update 256": ("update 256",),
}
"""For each operation, Reverb's ways to do it."""
OURS = {"sample 256": ("sample 256", "sample 256 with out", "sample 256, two ahead")}

GATES = {
    "cart: hocket, sample 256": "<= 70 us",
    "cart: hocket, add 64": ">= 10 M rows/s",
    "cart: shm, sample 256": "<= 80 us, >= 3 M rows/s, >= 50 x",
    "cart: shm, update 256": "<= 15 us",
    "cart: tcp, sample 256": "<= 150 us, >= 20 x",
    "cart: tcp, insert 1": "<= 90 us",
    "cart: tcp, insert 64": ">= 0.6 M rows/s",
    "cart: tcp, update 256": "<= 100 us",
    "atari: shm, sample 256": "<= 1,000 us, >= 2 x",
    "atari: tcp, sample 256": "<= 4,000 us, >= 2 x",
    "on one core": "<= 300 us",
    "actors, inserted": "slowest >= 0.5",
    "memory of a 44-byte transition": "<= 100 B",
}
"""The goals of figures, by the end of their names."""

Round = dict[str, dict[str, float]]


def gate(name: str) -> dict[str, str]:
    goal = next((goal for end, goal in GATES.items() if name.endswith(end)), None)
    return {"gate": goal} if goal else {}


def service(peers: str | None, rounds: int, seconds: float) -> None:
    """Measure latency and rates of one client in another process than the server."""
    with ExitStack() as stack:
        asks = {c: stack.enter_context(asked([sys.executable, __file__, c])) for c in CARRIERS}
        if peers:
            script = str(Path(__file__).with_name("peers_reverb.py"))
            asks[REVERB] = stack.enter_context(asked([peers, script]))
        for case in CASES:
            for operation, theirs in OPERATIONS.items():
                parties = [(c, o) for c in CARRIERS for o in OURS.get(operation, (operation,))]
                parties += [(REVERB, way) for way in theirs] if peers else []
                turns = [take_turns(asks, parties, case, seconds) for _ in range(rounds)]
                compare(case, turns, [f"{REVERB}, {way}" for way in theirs] if peers else [])


def take_turns(
    asks: dict[str, Any], parties: Sequence[tuple[str, str]], case: str, seconds: float
) -> Round:
    times_of: Round = {}
    meter = Meter()
    for party, operation in parties:
        asks[party](case=case, operation=operation, seconds=0.05)  # fills and warms up
        meter.cores()
        times = asks[party](case=case, operation=operation, seconds=seconds)
        times_of[f"{party}, {operation}"] = {**times, "others": meter.cores()[1]}
    return times_of


def compare(case: str, rounds: Sequence[Round], peers: Sequence[str]) -> None:
    """Print medians; a ratio compares rows per second with Reverb's fastest way in the round."""
    quiet = quieter_half(rounds, lambda times: max(each["others"] for each in times.values()))
    for name in quiet[0]:
        middle = {k: statistics.median(times[name][k] for times in quiet) for k in quiet[0][name]}
        more: dict[str, Any] = {}
        if peers and name not in peers:
            best = [max(times[peer]["rate"] for peer in peers) for times in quiet]
            ratios = [times[name]["rate"] / b for times, b in zip(quiet, best, strict=True)]
            more = {
                "ratio": round(statistics.median(ratios), 1),
                "spread": [round(min(ratios), 1), round(max(ratios), 1)],
                "against": f"the best way of {REVERB}, in rows a second",
            }
        tell(
            f"{case}: {name}", round(middle["p50"], 1), "us", p99=round(middle["p99"], 1),
            rows_per_s=round(middle["rate"]), **more, **gate(f"{case}: {name}"),
            others=round(middle["others"], 2),
        )  # fmt: skip


@contextmanager
def served(case: str, capacity: int, core: int | None = None) -> Iterator[dict[str, str]]:
    """Start a server; yield its addresses by carrier, and its process id."""
    columns = str(Schema.of(random_rows(case))).split()
    pin = [] if core is None else ["taskset", "-c", str(core)]
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen(
            [*pin, sys.executable, "-m", "hocket.cli.main", "replay", "serve", "--schema", *columns,
             "--capacity", str(capacity), "--port", "0", "--unix", f"{folder}/socket"],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert server.stdout is not None
        try:
            addresses = re.findall(r"(\w+)(://[^,\s]+)", server.stdout.readline())
            yield {c: c + rest for c, rest in addresses} | {"pid": str(server.pid)}
        finally:
            server.terminate()
            server.wait()


def hocket(rows: Rows, address: str) -> Replay:
    table = connect(address)
    one, many = ({name: x[:n] for name, x in rows.items()} for n in (1, 64))
    held: list[Batch | None] = [None]

    def sample(_: int) -> Batch:
        held[0] = batch = table.sample(256, out=held[0])
        return batch

    def draw_keys() -> Any:
        return table.sample(256).keys.copy()

    def ahead() -> Callable[[int], object]:
        batches = table.batches(256, ahead=2)
        return lambda _: next(batches)

    return Replay(
        fill=lambda rows, priority: table.insert(rows, priority**ALPHA),
        operations={
            "insert 1": (1, lambda: lambda i: table.insert(one)),
            "insert 64": (64, lambda: lambda i: table.insert(many)),
            "sample 256": (256, lambda: lambda i: table.sample(256)),
            "sample 256 with out": (256, lambda: sample),
            "sample 256, two ahead": (256, ahead),
            "update 256": (256, lambda: updates(draw_keys, table.update)),
        },
    )


def one_core(seconds: float) -> None:
    """Measure with server and client on one core, where polling holds up the other side."""
    before = os.sched_getaffinity(0)
    core = max(before)
    meter = Meter()
    try:
        with served("cart", CAPACITY["cart"], core) as addresses:
            os.sched_setaffinity(0, {core})
            for carrier in CARRIERS:
                replay = hocket(random_rows("cart"), addresses[carrier])
                fill(replay, random_rows("cart"), CAPACITY["cart"])
                for operation, (num, prepare) in replay.operations.items():
                    meter.cores()
                    times = measured(prepare(), num, seconds)
                    tell(
                        f"cart: {carrier}, {operation}, both on one core", round(times["p50"], 1),
                        "us", p99=round(times["p99"], 1), **gate("on one core"),
                        others=round(meter.cores()[1], 2),
                    )  # fmt: skip
    finally:
        os.sched_setaffinity(0, before)


def memory() -> None:
    """Measure a server's bytes per row: a full table against a table of two rows."""
    rows, capacity = random_rows("cart"), 1 << 20
    sizes = []
    for num in (2, capacity):
        with served("cart", num) as addresses:
            fill(hocket(rows, addresses["tcp"]), rows, num)
            sizes.append(resident(addresses["pid"]))
    grown = (sizes[1] - sizes[0]) / capacity
    name = "cart: server, memory of a 44-byte transition"
    tell(name, round(grown, 1), "B", **gate(name))


def measured(call: Callable[[int], object], num: int, seconds: float) -> dict[str, float]:
    each = np.array(timed(call, seconds))
    p50, p99 = np.quantile(each, [0.5, 0.99])
    return {"p50": 1e6 * p50, "p99": 1e6 * p99, "rate": num * len(each) / each.sum()}


# Many actors, and a learner


def actors(counts: Sequence[int], seconds: float) -> None:
    """Let `counts` processes insert 64 rows at a time, while one samples 256 and updates them."""
    for case in CASES:
        for carrier in CARRIERS:
            for count in counts:
                with served(case, CAPACITY[case]) as addresses:
                    crowd(case, carrier, addresses[carrier], count, seconds)


def crowd(case: str, carrier: str, address: str, count: int, seconds: float) -> None:
    spawn = multiprocessing.get_context("spawn")
    barrier, answers = spawn.Barrier(count + 2), spawn.Queue()
    jobs = [
        spawn.Process(target=work, args=(k, case, address, seconds, barrier, answers))
        for k in range(count + 1)
    ]
    for job in jobs:
        job.start()
    barrier.wait()
    meter = Meter()
    times_of = dict(answers.get() for _ in jobs)
    others = meter.cores()[1]
    for job in jobs:
        job.join()
    learner, rates = times_of.pop(0), [times["rate"] for times in times_of.values()]
    name = f"{case}: {carrier}, {count} actors"
    p99 = round(max(times["p99"] for times in times_of.values()), 1)
    tell(
        f"{name}, inserted", round(sum(rates)), "rows/s",
        slowest=round(min(rates) / statistics.mean(rates), 2),
        p50=round(statistics.median(times["p50"] for times in times_of.values()), 1), p99=p99,
        **gate("actors, inserted"), others=round(others, 2),
    )  # fmt: skip
    tell(
        f"{name}, sampled and updated", round(learner["rate"]), "rows/s",
        p50=round(learner["p50"], 1), p99=round(learner["p99"], 1), others=round(others, 2),
    )  # fmt: skip


def work(k: int, case: str, address: str, seconds: float, barrier: Any, answers: Any) -> None:
    """Run actor `k`, or the learner if `k` is 0, and put its figures into `answers`."""
    table, rows = connect(address), random_rows(case)
    priority = np.random.default_rng(k).random(256, np.float32) + np.float32(0.1)
    table.insert(rows, priority)

    def insert(_: int) -> None:
        table.insert({name: x[:64] for name, x in rows.items()}, priority[:64])

    def learn(_: int) -> None:
        batch = table.sample(256)
        table.update(batch.keys, priority)

    barrier.wait()
    answers.put((k, measured(insert if k else learn, 64 if k else 256, seconds)))


if __name__ == "__main__":
    carrier = sys.argv[1]
    with ExitStack() as stack:
        at = {c: stack.enter_context(served(c, CAPACITY[c])) for c in CASES}

        def client(rows: Rows, capacity: int) -> Replay:
            case = next(name for name in CASES if set(rows) == set(CASES[name].columns))
            return hocket(rows, at[case][carrier])

        serve(client, CAPACITY)
