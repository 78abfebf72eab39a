"""Replay as a service: hocket's server and its clients, beside Reverb's; see `replay.py`."""

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
"""Of both; and the ways that Reverb offers for it."""
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
"""What was set out to be reached, by the end of a figure's name."""

Round = dict[str, dict[str, float]]


def gate(name: str) -> dict[str, str]:
    found = next((found for of, found in GATES.items() if name.endswith(of)), None)
    return {"gate": found} if found else {}


def service(peers: str | None, rounds: int, seconds: float) -> None:
    """Latency and rates of one client in another process than the server."""
    with ExitStack() as stack:
        asks = {c: stack.enter_context(asked([sys.executable, __file__, c])) for c in CARRIERS}
        if peers:
            script = str(Path(__file__).with_name("peers_reverb.py"))
            asks[REVERB] = stack.enter_context(asked([peers, script]))
        for case in CASES:
            for operation, theirs in OPERATIONS.items():
                parties = [(c, o) for c in CARRIERS for o in OURS.get(operation, (operation,))]
                parties += [(REVERB, way) for way in theirs] if peers else []
                found = [take_turns(asks, parties, case, seconds) for _ in range(rounds)]
                compare(case, found, [f"{REVERB}, {way}" for way in theirs] if peers else [])


def take_turns(
    asks: dict[str, Any], parties: Sequence[tuple[str, str]], case: str, seconds: float
) -> Round:
    told: Round = {}
    meter = Meter()
    for party, operation in parties:
        asks[party](case=case, operation=operation, seconds=0.05)  # filled, and warm
        meter.cores()
        of = asks[party](case=case, operation=operation, seconds=seconds)
        told[f"{party}, {operation}"] = {**of, "others": meter.cores()[1]}
    return told


def compare(case: str, rounds: Sequence[Round], peers: Sequence[str]) -> None:
    """A ratio is that of rows a second, to the best way of the peer's in the same round."""
    quiet = quieter_half(rounds, lambda told: max(each["others"] for each in told.values()))
    for name in quiet[0]:
        middle = {k: statistics.median(told[name][k] for told in quiet) for k in quiet[0][name]}
        more: dict[str, Any] = {}
        if peers and name not in peers:
            best = [max(told[peer]["rate"] for peer in peers) for told in quiet]
            ratios = [told[name]["rate"] / b for told, b in zip(quiet, best, strict=True)]
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
    """The addresses of a server of its own, by carrier."""
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
            found = re.findall(r"(\w+)(://[^,\s]+)", server.stdout.readline())
            yield {c: c + rest for c, rest in found} | {"pid": str(server.pid)}
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
    """Server and client share a core, so that whoever looks for the other keeps it from working."""
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
                    of = measured(prepare(), num, seconds)
                    tell(
                        f"cart: {carrier}, {operation}, both on one core", round(of["p50"], 1),
                        "us", p99=round(of["p99"], 1), **gate("on one core"),
                        others=round(meter.cores()[1], 2),
                    )  # fmt: skip
    finally:
        os.sched_setaffinity(0, before)


def memory() -> None:
    """Of a server's process, for each row of a full table; beside one with a table of two rows."""
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
    """So many processes insert 64 rows at a time, while one samples 256 and updates them."""
    for case in CASES:
        for carrier in CARRIERS:
            for count in counts:
                with served(case, CAPACITY[case]) as addresses:
                    crowd(case, carrier, addresses[carrier], count, seconds)


def crowd(case: str, carrier: str, address: str, count: int, seconds: float) -> None:
    spawn = multiprocessing.get_context("spawn")
    barrier, found = spawn.Barrier(count + 2), spawn.Queue()
    jobs = [
        spawn.Process(target=work, args=(k, case, address, seconds, barrier, found))
        for k in range(count + 1)
    ]
    for job in jobs:
        job.start()
    barrier.wait()
    meter = Meter()
    told = dict(found.get() for _ in jobs)
    others = meter.cores()[1]
    for job in jobs:
        job.join()
    learner, rates = told.pop(0), [of["rate"] for of in told.values()]
    name = f"{case}: {carrier}, {count} actors"
    p99 = round(max(of["p99"] for of in told.values()), 1)
    tell(
        f"{name}, inserted", round(sum(rates)), "rows/s",
        slowest=round(min(rates) / statistics.mean(rates), 2),
        p50=round(statistics.median(of["p50"] for of in told.values()), 1), p99=p99,
        **gate("actors, inserted"), others=round(others, 2),
    )  # fmt: skip
    tell(
        f"{name}, sampled and updated", round(learner["rate"]), "rows/s",
        p50=round(learner["p50"], 1), p99=round(learner["p99"], 1), others=round(others, 2),
    )  # fmt: skip


def work(k: int, case: str, address: str, seconds: float, barrier: Any, found: Any) -> None:
    """The learner is number 0."""
    table, rows = connect(address), random_rows(case)
    priority = np.random.default_rng(k).random(256, np.float32) + np.float32(0.1)
    table.insert(rows, priority)

    def insert(_: int) -> None:
        table.insert({name: x[:64] for name, x in rows.items()}, priority[:64])

    def learn(_: int) -> None:
        batch = table.sample(256)
        table.update(batch.keys, priority)

    barrier.wait()
    found.put((k, measured(insert if k else learn, 64 if k else 256, seconds)))


if __name__ == "__main__":
    carrier = sys.argv[1]
    with ExitStack() as stack:
        at = {c: stack.enter_context(served(c, CAPACITY[c])) for c in CASES}

        def client(rows: Rows, capacity: int) -> Replay:
            case = next(name for name in CASES if set(rows) == set(CASES[name].columns))
            return hocket(rows, at[case][carrier])

        serve(client, CAPACITY)
