"""Measure host environments: PPO under `sebulba`, of stable-baselines3 and of sbx.

    python -m venv peers && peers/bin/pip install stable-baselines3 sbx-rl envpool gymnasium
    python benchmarks/sebulba.py --peers peers/bin/python
    python benchmarks/sebulba.py --peers peers/bin/python --cases envpool/few --rounds 5
    python benchmarks/sebulba.py --peers peers/bin/python settings     # the fastest for the peers
    python benchmarks/sebulba.py overlap stepping                      # only hocket

train: CartPole of EnvPool, and of Gymnasium as ordinary Python environments. All parties train for
equally many environment steps, with the same number of environments, steps of a rollout,
minibatches, epochs, networks (two of 2 x 64 tanh) and learning rate, and take turns. Steps/s are of
a whole training, stepping and learning. Seconds to 475 are the time until the last 100 episodes had
that mean return. Imports, compiling and making the environments are not counted (`peers_ppo.py`
says how; hocket's first iteration counts as much as the next ones take on average). A ratio above 1
means that hocket is faster than the faster peer of the same round. The quieter half of the rounds
counts; `others` is the number of cores that the rest of the machine used meanwhile.

overlap: how much of the time environments step while a device acts or learns, from the timeline of
a recorded run. stepping: the steps/s of the environments alone, which no training can exceed.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from split import Meter, asked, quieter_half, tell

GOAL = 475.0
PARTS = ("train", "overlap", "stepping", "settings")
INSTALL = "python -m venv peers && peers/bin/pip install stable-baselines3 sbx-rl envpool gymnasium"

OVERLAP = "environments step while a device computes"
PATIENCE = "seconds to wait, before each turn, for others to use less than a quarter of a core"


@dataclass(frozen=True)
class Sizes:
    num_envs: int
    length: int
    epochs: int
    minibatches: int
    steps: int
    """Environment steps of a training; the learning rate falls to 0 over them."""
    learning_rate: float = 2e-3

    def __str__(self) -> str:
        batch = self.num_envs * self.length // self.minibatches
        return f"{self.num_envs} envs, {self.epochs} epochs of batches of {batch}"


SIZES = {
    "many": Sizes(64, 128, epochs=4, minibatches=8, steps=500_000),
    # The peers' own defaults: 10 epochs, batches of 64.
    "few": Sizes(8, 128, epochs=10, minibatches=16, steps=200_000),
    "small": Sizes(8, 128, epochs=10, minibatches=64, steps=150_000, learning_rate=5e-4),
}


@dataclass(frozen=True)
class Variant:
    """One party's training, in a process of its own that waits for its turn."""

    name: str
    who: str = "hocket"
    """`hocket`, `sb3` or `sbx`."""
    env: str = ""
    """The name that `hocket.make` takes, with options."""
    distribute: str = ""
    threads: int = 1
    """A peer's threads."""
    vector: str = "dummy"
    """A peer's way to step Gymnasium's environments."""


POOL, PLAIN = "envpool:CartPole-v1:num_threads=1", "gymnasium:CartPole-v1"
WORKERS = f"{PLAIN}:vectorize=processes"
HOCKET = {
    "envpool": (
        Variant("sebulba, one thread", env=POOL, distribute="sebulba:threads=1,lag=1"),
        Variant("sebulba, two threads", env=POOL, distribute="sebulba:threads=2,lag=1"),
        Variant("sebulba, two threads, free", env=POOL, distribute="sebulba:threads=2,lag=free"),
        Variant(
            "sliced, one process acts on a core and one learns on the other",
            env=POOL, distribute="sliced:slices=2,dedicated=true,lag=1",
        ),
    ),
    "gymnasium": (
        Variant("sebulba, one thread", env=PLAIN, distribute="sebulba:threads=1,lag=1"),
        Variant(
            "sebulba, two threads, environments in two processes",
            env=WORKERS, distribute="sebulba:threads=2,lag=1",
        ),
        Variant(
            "sebulba, two threads, free, environments in two processes",
            env=WORKERS, distribute="sebulba:threads=2,lag=free",
        ),
    ),
}  # fmt: skip
# The fastest of `settings`, except with 8 environments of Gymnasium, where not all were tried: one
# thread of torch or XLA, and no subprocesses.
PEERS = (Variant("stable-baselines3", "sb3"), Variant("sbx", "sbx"))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", default=PARTS[:2], help=f"some of {', '.join(PARTS)}")
    cases = [f"{env}/{sizes}" for env in HOCKET for sizes in SIZES]
    parser.add_argument("--cases", nargs="+", choices=cases, default=cases)
    parser.add_argument("--peers", help="the Python that has stable-baselines3 and sbx")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--patience", type=float, default=0.0, help=PATIENCE)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(**json.loads(options.serve))
        return
    if {"train", "settings"} & set(options.parts):
        check_peers(options.peers)
    for part in options.parts:
        for case in options.cases:
            {"train": train, "overlap": overlap, "stepping": stepping, "settings": settings}[part](
                case, options
            )


def check_peers(python: str | None) -> None:
    imports = "import stable_baselines3, sbx, envpool, gymnasium"
    done = python and subprocess.run([python, "-c", imports], capture_output=True, check=False)
    if not done or done.returncode:
        why = done.stderr.decode().splitlines()[-1] if done else "--peers is missing"
        sys.exit(f"{why}. Install the peers in an environment of their own:\n{INSTALL}")


# Speed


def train(case: str, options: argparse.Namespace) -> None:
    env, size = case.split("/")
    sizes, variants = SIZES[size], (*HOCKET[env], *PEERS)
    rounds = take_turns(variants, env, sizes, options)
    rates = [{name: x["steps"] / x["seconds"] for name, x in each.items()} for each in rounds]
    goals = [{name: until(x["curve"], GOAL) for name, x in each.items()} for each in rounds]
    others = round(max(x["others"] for each in rounds for x in each.values()), 2)
    peers = [peer.name for peer in PEERS]
    for v in variants:
        ratios = [each[v.name] / max(each[p] for p in peers) for each in rates]
        about = {"distribute": v.distribute, "env": v.env} if v.who == "hocket" else {}
        tell(
            f"{env} cartpole, {sizes}: {v.name}",
            round(statistics.median(each[v.name] for each in rates)), "env steps/s",
            **compared(ratios), against="the faster peer",
            values=[round(each[v.name]) for each in rates], others=others, **about,
        )  # fmt: skip
    for v in variants:
        ratios = [min(each[p] for p in peers) / each[v.name] for each in goals]
        reached = [each[v.name] for each in goals if math.isfinite(each[v.name])]
        tell(
            f"{env} cartpole, {sizes}: {v.name}, to a mean return of {GOAL:g}",
            round(statistics.median(reached), 2) if reached else None, "s",
            **compared([r for r in ratios if 0 < r < math.inf]), against="the faster peer",
            values=[round(s, 2) for s in reached], reached=f"{len(reached)} of {len(goals)}",
        )  # fmt: skip


def compared(ratios: list[float]) -> dict[str, Any]:
    if not ratios:
        return {"ratio": None}
    spread = [round(min(ratios), 2), round(max(ratios), 2)]
    return {"ratio": round(statistics.median(ratios), 2), "spread": spread}


def until(curve: Sequence[Sequence[float | None]], goal: float) -> float:
    """Return the seconds until a curve of (seconds, steps, mean return) reaches `goal`."""
    return next((at or 0.0 for at, _, mean in curve if mean is not None and mean >= goal), math.inf)


def settings(case: str, options: argparse.Namespace) -> None:
    """Try every setting of a peer that may be the fastest, in a shorter training."""
    env, size = case.split("/")
    vectors = ("dummy", "subproc") if env == "gymnasium" else ("dummy",)
    for peer in PEERS:
        for vector in vectors:
            for threads in (1, 2):
                name = f"{peer.name}, {threads} threads" + f", {vector}" * (env == "gymnasium")
                candidate = Variant(name, peer.who, threads=threads, vector=vector)
                rates = []
                with served(candidate, env, SIZES[size], options.peers) as ask:
                    for turn in range(2):
                        training = ask(seed=turn, seconds=4.0)
                        rates.append(round(training["steps"] / training["seconds"]))
                tell(f"{env} cartpole, {SIZES[size]}: {name}", max(rates), "env steps/s")


def take_turns(
    variants: Sequence[Variant], env: str, sizes: Sizes, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Let every variant train in each round; return the quieter rounds."""
    rounds, meter = [], Meter()
    with ExitStack() as stack:
        asks = {v.name: stack.enter_context(served(v, env, sizes, options.peers)) for v in variants}
        for turn in range(options.rounds):
            trainings = {}
            for name, ask in asks.items():
                wait_for_quiet(meter, options.patience)
                trainings[name] = ask(seed=turn)
                trainings[name]["others"] = meter.cores()[1]
            rounds.append(trainings)
    return quieter_half(rounds, lambda turns: max(turn["others"] for turn in turns.values()))


def wait_for_quiet(meter: Meter, patience: float) -> None:
    until, quiet = time.monotonic() + patience, 0
    meter.cores()
    while quiet < 2 and time.monotonic() < until:
        time.sleep(1.0)
        quiet = quiet + 1 if meter.cores()[1] < 0.25 else 0


def served(
    variant: Variant, env: str, sizes: Sizes, python: str | None
) -> AbstractContextManager[Callable[..., Any]]:
    """Open a process of the variant, where `ask(seed=0, ...)` trains once."""
    if variant.who == "hocket":
        words = json.dumps({"variant": asdict(variant), "sizes": asdict(sizes)})
        command = [sys.executable, __file__, "--serve", words]
    else:
        script = str(Path(__file__).with_name("peers_ppo.py"))
        command = [str(python), script, variant.who, env, "--serve", "--vector", variant.vector]
        command += ["--threads", str(variant.threads)]
        for name, value in asdict(sizes).items():
            command += [f"--{name.replace('_', '-')}", str(value)]
    return asked(command, PYTHONWARNINGS="ignore")


def serve(variant: dict[str, Any], sizes: dict[str, Any]) -> None:
    of, size = Variant(**variant), Sizes(**sizes)
    for line in sys.stdin:
        training = learn(ppo(of.env, size, of.distribute), of.distribute, **json.loads(line))
        print(json.dumps(training), flush=True)


def ppo(env: str, sizes: Sizes, distribute: str) -> Any:
    from hocket import make
    from hocket.algorithms import PPO
    from hocket.system.names import read_words

    name, options = read_words(env)
    _, how = read_words(distribute)
    # A free iteration has one thread's environments, so it gets fewer batches of the same size.
    parts = how["threads"] if how.get("lag") == "free" else 1
    return PPO(
        env=make(name, **options), env_steps=sizes.steps, num_envs=sizes.num_envs,
        length=sizes.length, epochs=sizes.epochs, minibatches=sizes.minibatches // parts,
        learning_rate=sizes.learning_rate,
    )  # fmt: skip


def learn(
    algorithm: Any, distribute: str, *, seed: int = 0, seconds: float = math.inf,
    record: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Train; return steps, seconds and the curve, and with `record` the shares of the timeline."""
    import hocket

    rows: list[tuple[float, float]] = []
    curve: list[tuple[float, int, float | None]] = []
    report = None
    for report in hocket.iterate(algorithm, seed=seed, distribute=distribute, record=record):
        returns, counts = (
            report.metrics[name].reshape(len(report.metrics[name]), -1).sum(1)
            for name in ("episode_return", "episode_count")
        )
        rows += zip(returns.tolist(), counts.tolist(), strict=True)
        if not report.timings.run:
            continue  # the first iteration's time is estimated from the next ones
        before, done = curve[-1][0] if curve else 0.0, len(curve)
        each = (report.timings.run - before) / (report.iteration - done)
        for i in range(done + 1, report.iteration + 1):
            steps = report.env_steps // report.iteration * i
            curve.append((before + each * (i - done), steps, last_hundred(rows[:i])))
        if report.timings.run >= seconds:
            break
    assert report is not None
    training: dict[str, Any] = {"steps": curve[-1][1], "seconds": curve[-1][0], "curve": curve}
    if record:
        training["trace"] = shares(report.executor.timeline().spans)
    return training


def last_hundred(rows: Sequence[tuple[float, float]]) -> float | None:
    """Return the mean return of the last 100 episodes or more, of whole iterations."""
    total, count = 0.0, 0.0
    for ret, ended in reversed(rows):
        total, count = total + ret, count + ended
        if count >= 100:
            return total / count
    return None


# Overlap


def overlap(case: str, options: argparse.Namespace) -> None:
    env, size = case.split("/")
    for v in HOCKET[env]:
        with served(v, env, SIZES[size], None) as ask:
            ask(seconds=0.5)
            recorded = ask(seconds=3.0, record=True)
        rate = round(recorded["steps"] / recorded["seconds"])
        name = f"{env} cartpole, {SIZES[size]}: {v.name}: {OVERLAP}"
        tell(name, **overlap_of(recorded["trace"]), recorded_rate=rate)


def stepping(case: str, options: argparse.Namespace) -> None:
    """Measure the first variant's environments alone, with random actions."""
    import numpy as np

    from hocket import make
    from hocket.envs.host import Watchable
    from hocket.system.names import read_words

    env, size = case.split("/")
    num_envs = SIZES[size].num_envs
    name, about = read_words(HOCKET[env][0].env)
    made = make(name, **about)
    live = made.open_here(num_envs) if isinstance(made, Watchable) else made.open(num_envs)
    assert live is not None
    live.reset(np.arange(num_envs, dtype=np.uint32))
    actions = np.random.default_rng(0).integers(0, 2, (1000, num_envs), np.int32)
    best = math.inf
    for _ in range(5):
        start = time.perf_counter()
        for row in actions:
            live.send(row)
            live.recv()
        best = min(best, time.perf_counter() - start)
    live.close()
    rate = round(actions.size / best)
    tell(f"{env} cartpole, {num_envs} envs: stepping alone", rate, "env steps/s", env=name)


def overlap_of(trace: dict[str, Any]) -> dict[str, Any]:
    """Format the result of `shares` as a line of figures."""
    places = trace["places"].items()
    return {
        "value": round(trace["both"], 3),
        "unit": "of the time",
        "of_stepping": round(trace["both"] / (trace["host"] or 1.0), 3),
        "of_computing": round(trace["both"] / (trace["device"] or 1.0), 3),
        "places": {place: {k: round(x, 3) for k, x in how.items()} for place, how in places},
    }


def shares(spans: Sequence[Any]) -> dict[str, Any]:
    """Compute the shares of the time in which environments step, a device computes, or both.

    For the instances of each place, `host` is stepping, `compute` is acting in an actor and
    learning in a learner, `wait` is waiting for others, and the rest is Python and crossings.
    """
    begin, end = min(s.start for s in spans), max(s.end for s in spans)
    whole = end - begin
    host = union((s.start, s.end) for s in spans if s.kind == "host")
    device = union((s.start, s.end) for s in spans if s.kind == "compute")
    of_all = {
        "seconds": whole,
        "host": length(host) / whole,
        "device": length(device) / whole,
        "both": length(common(host, device)) / whole,
    }
    by_place: dict[str, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for s in spans:
        by_place[s.instance.partition("/")[0]][s.instance].append(s)
    places = {}
    for place, instances in by_place.items():
        of = {
            kind: statistics.mean(
                length(union((s.start, s.end) for s in mine if s.kind == kind)) / whole
                for mine in instances.values()
            )
            for kind in ("host", "compute", "wait")
        }
        places[place] = {**of, "rest": max(0.0, 1.0 - sum(of.values()))}
    return {**of_all, "places": places}


Intervals = list[tuple[float, float]]


def union(intervals: Iterable[tuple[float, float]]) -> Intervals:
    """Merge intervals that touch; return them in order."""
    merged: Intervals = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def common(ours: Intervals, theirs: Intervals) -> Intervals:
    """Intersect two unions of intervals."""
    both, i, j = [], 0, 0
    while i < len(ours) and j < len(theirs):
        start, end = max(ours[i][0], theirs[j][0]), min(ours[i][1], theirs[j][1])
        if start < end:
            both.append((start, end))
        if ours[i][1] < theirs[j][1]:
            i += 1
        else:
            j += 1
    return both


def length(intervals: Intervals) -> float:
    return sum(end - start for start, end in intervals)


if __name__ == "__main__":
    main()
