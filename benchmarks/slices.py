"""Measure what several instances on one GPU gain, and where they gain nothing.

    python benchmarks/slices.py --sections grid --surface surface.json     # on a machine with a GPU
    python benchmarks/slices.py --sections grid --surface surface.json --envs 16384   # one row more
    python benchmarks/slices.py --sections totals --minibatches 16
    python benchmarks/slices.py --sections learning --length 8 --minibatches 8
    python benchmarks/slices.py --sections saturated serving seeds
    python benchmarks/slices.py --env Pendulum-v1 --scale 64           # on any machine

PPO on the quadruped (16 steps, 4 epochs of 4 minibatches, two layers of 128). All parties of a
section are started, and then take turns, three times. Every line has the median, the least and the
greatest, and the GPU's counters meanwhile (NVML's GPM counters, percent); lines of slices also say
if the MPS server saw every process (`attached`).

    grid        k instances with as many environments each, and the choice of the search
    totals      as many environments in all: one program; k instances; a slice that acts beside one
                that learns; processes without MPS; one process whose loops are command buffers
    saturated   the search on a GPU that one instance fills
    learning    five seeds: return over samples, and over seconds
    seeds       eight agents: on eight slices, in one program, one after another
    serving     stepping and acting only
    dedicated   IMPALA with slices that act and one that learns, without waiting
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # others share the GPU

import jax
import numpy as np

from hocket import Plan, make
from hocket.algorithms import IMPALA, PPO
from hocket.cluster import Cluster
from hocket.cluster.nvidia.activity import SHORTEST, GpuActivity
from hocket.cluster.search import Point, Score, best, grid, read_scores, search
from hocket.cluster.slices import read_slice
from hocket.core.graph.trace import Graph, trace
from hocket.envs import unroll
from hocket.runtime.compile.cache import enable_cache
from hocket.runtime.executor import Executor, advance
from hocket.strategies.strategy import resolve
from hocket.training.loop import first_key, make_executor
from hocket.training.search import SECONDS as SEARCHED
from hocket.training.search import measure

ROUNDS = 3
SECONDS = 0.8
"""The approximate length of one timed run."""
T_OF_FIVE = 2.776
"""Student's t for 95 % of five samples."""
APART = "dedicated=true", "lag=1"
"""One slice steps and acts while another learns from the samples of the iteration before."""


@dataclass(frozen=True)
class Party:
    """One way to run an algorithm."""

    name: str
    words: str
    envs: int
    """The environments of all instances together."""
    seeds: int | None = None


@dataclass(frozen=True)
class Acting:
    """An agent that steps and acts, and learns nothing: the work of serving."""

    ppo: PPO

    @property
    def env_steps(self) -> int:
        return self.ppo.env_steps

    @property
    def num_envs(self) -> int:
        return self.ppo.num_envs

    def init(self, key: Any, num_envs: int) -> Any:
        return self.ppo.init(key, num_envs)

    def step(self, state: Any) -> tuple[Any, dict[str, Any]]:
        act = partial(self.ppo.act, state.learner.params.policy, state.learner.moments)
        actor, rollout = unroll(self.ppo.env, act, state.actor, self.ppo.length)
        return state._replace(actor=actor), {**rollout.episodes}

    def policy(self, state: Any, explore: bool = False) -> Any:
        return self.ppo.policy(state, explore)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--env", default="Quadruped-v1")
    parser.add_argument("--scale", type=int, default=1, help="divide the environments by this")
    parser.add_argument("--totals", nargs="+", type=int, default=[4096, 16384],
                        help="environments in all, for the section of this name")  # fmt: skip
    parser.add_argument("--envs", nargs="+", type=int, default=[1024, 4096, 16384],
                        help="environments of each instance, for the grid")  # fmt: skip
    parser.add_argument("--coupled", action="store_true",
                        help="learn without PPO's `decoupled`, for late samples")  # fmt: skip
    parser.add_argument("--length", type=int, default=16, help="steps of a rollout")
    parser.add_argument("--minibatches", type=int, default=4, help="minibatches of an epoch")
    parser.add_argument("--surface", type=Path, help="add the grid's scores to those of this file")
    options = parser.parse_args()
    enable_cache()
    ppo = PPO(
        env=make(options.env), length=options.length, epochs=4, minibatches=options.minibatches,
        hidden=(128, 128), learning_rate=5e-4, entropy_weight=0.0, discount=0.97,
        env_steps=1 << 40, anneal=False,
    )  # fmt: skip
    for section in options.sections:
        SECTIONS[section](ppo, options)


def totals(ppo: PPO, options: argparse.Namespace) -> None:
    """Compare one program and several with as many environments in all, and their rivals."""
    parties: list[Party] = []
    against: dict[str, list[str]] = {}

    def add(name: str, words: str, *others: str) -> str:
        party = Party(f"{name}, {total}", words, total)
        parties.append(party)
        against[party.name] = list(others)
        return party.name

    for each in options.totals:
        total = each // options.scale
        program = add("one program", "anakin:devices=1")
        one = add("1 instance", _slices(1), program)
        two, four = (add(f"{k} instances", _slices(k), one, program) for k in (2, 4))
        apart = add("acting + learning", _slices(2, *APART), one, program, two)
        if _on_gpu():
            add("acting + learning through the host", _slices(2, *APART, "direct=false"), apart)
            add("4 instances without MPS", "sliced:slices=4,cut=shared", four, one)
            add("1 instance, command buffers", _slices(1, "command_buffers=true"), one)
    tell(f"training, {ppo.minibatches} minibatches", compared(ppo, parties), against)


def serving(ppo: PPO, options: argparse.Namespace) -> None:
    n = 4096 // options.scale
    parties = [
        *(Party(f"{k} x {n}", _slices(k), k * n) for k in (1, 2, 4)),
        Party(f"1 x {4 * n}", "sliced:slices=1", 4 * n),
    ]
    tell("serving", compared(Acting(ppo), parties), {
        f"2 x {n}": [f"1 x {n}"], f"4 x {n}": [f"1 x {n}", f"1 x {4 * n}"],
    })  # fmt: skip


def seeds(ppo: PPO, options: argparse.Namespace) -> None:
    n, num = 1024 // options.scale, 8
    parties = [
        Party("one agent", "anakin:devices=1", n),
        Party(f"{num} agents, one program", "anakin:devices=1", n, num),
        Party(f"{num} agents, {num} slices", _slices(num), n, num),
    ]
    # Agents that run one after another have the speed of one.
    others = {party.name: [parties[0].name] for party in parties[1:]}
    tell(f"seeds, {n} environments each", compared(ppo, parties), others)


def dedicated(ppo: PPO, options: argparse.Namespace) -> None:
    """Measure IMPALA on CartPole, whose actors and learner do not wait for each other."""
    del ppo
    n = 3 * 4096 // options.scale
    impala = IMPALA(env=make("CartPole-v1"), length=16, env_steps=1 << 40)
    parties = [
        Party("one program", "sliced:slices=1", n),
        Party("3 acting slices, 1 learning", _slices(4, "dedicated=true"), n),
    ]
    tell("dedicated", compared(impala, parties), {parties[1].name: [parties[0].name]})


def saturated(ppo: PPO, options: argparse.Namespace) -> None:
    wide = replace(ppo, env=make("Pendulum-v1"), hidden=(1024, 1024))
    envs = [65536 // options.scale]
    case = "search where one instance fills the GPU (Pendulum, two layers of 1,024)"

    def scored(point: Point) -> Score:
        score = measure(wide, point, SEARCHED, Cluster.local())
        print(json.dumps({
            "name": f"{case}: {point}", "value": round(score.value), "unit": "env steps/s",
            "spread": [round(x) for x in score.spread], "failed": score.failed,
            **_rounded(score.activity), **machine(),
        }), flush=True)  # fmt: skip
        return score

    chosen = best(search(scored, (1, 2), envs, shares=_on_gpu())).point
    print(json.dumps({
        "name": f"{case}: chosen", "value": chosen.instances, "unit": "instances", **machine(),
    }), flush=True)  # fmt: skip


def whole_grid(ppo: PPO, options: argparse.Namespace) -> None:
    """Measure the grid; points with the same environments per instance take turns."""
    counts, envs = (1, 2, 4, 8), [n // options.scale for n in options.envs]
    known = options.surface and options.surface.is_file()
    scores = {score.point: score for score in read_scores(options.surface)} if known else {}
    for n in envs:
        points = grid(counts, [n], _on_gpu())
        lines = compared(ppo, [_party(point) for point in points])
        for point, line in zip(points, lines, strict=True):
            value, spread = statistics.median(line.rates), (min(line.rates), max(line.rates))
            scores[point] = Score(point, value, spread, line.activity)
        tell("grid", lines, {})
        if options.surface:
            about = {"about": machine(), "scores": [asdict(score) for score in scores.values()]}
            options.surface.write_text(json.dumps(about, indent=1))
    envs = sorted({point.envs for point in scores})
    tried = search(scores.__getitem__, counts, envs, shares=_on_gpu())
    chosen = best(tried)
    print(json.dumps({
        "name": f"search on the grid: {chosen.point}", "value": round(chosen.value),
        "unit": "env steps/s", "against": f"the best of {len(scores)} points",
        "ratio": round(chosen.value / max(score.value for score in scores.values()), 3),
        "measured": len(tried), **machine(),
    }), flush=True)  # fmt: skip


def _party(point: Point) -> Party:
    words = _slices(point.instances, share=point.share)
    return Party(str(point), words, point.instances * point.envs)


def learning(ppo: PPO, options: argparse.Namespace) -> None:
    n, iterations = 4096 // options.scale, 3200 // ppo.length
    ppo = replace(ppo, decoupled=not options.coupled)
    parties = [
        Party("one program", "anakin:devices=1", n), Party("1 instance", _slices(1), n),
        Party("4 instances", _slices(4), n), Party("acting + learning", _slices(2, *APART), n),
    ]  # fmt: skip
    curves: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {p.name: [] for p in parties}
    busy: dict[str, list[dict[str, float]]] = {party.name: [] for party in parties}
    with started(ppo, parties) as runs:
        for seed in range(5):
            for party in parties:
                with GpuActivity() as activity:
                    curves[party.name].append(learn(runs[party.name], seed, iterations))
                busy[party.name].append(activity.report())
    first: tuple[Any, Any] | None = None
    for name, runs_of in curves.items():
        returns, taken = (np.stack([run[k] for run in runs_of]) for k in (0, 1))
        mean = returns.mean(0)
        half = T_OF_FIVE * returns.std(0, ddof=1) / np.sqrt(len(runs_of))
        first = first or (mean, half)
        overlaps = np.abs(mean - first[0]) <= half + first[1]
        print(json.dumps({
            "name": f"learning, five seeds: {name}", "value": round(float(mean[-1]), 1),
            "unit": "return", "low": round(float((mean - half)[-1]), 1),
            "high": round(float((mean + half)[-1]), 1),
            "seconds": round(float(taken[:, -1].mean()), 2),
            "seconds_low_high": [round(float(f(taken[:, -1])), 2) for f in (np.min, np.max)],
            "intervals_that_overlap": f"{overlaps.sum()} of {len(mean)}, with {parties[0].name}",
            "samples": n * ppo.length * iterations, "length": ppo.length,
            "minibatches": ppo.minibatches,
            "means": [round(float(x), 1) for x in mean],
            "halves": [round(float(x), 1) for x in half],
            "at_seconds": [round(float(x), 2) for x in taken.mean(0)],
            **_mean(busy[name]), **machine(),
        }), flush=True)  # fmt: skip


def learn(executor: Executor, seed: int, iterations: int) -> tuple[np.ndarray, np.ndarray]:
    """Train; return the mean return of each tenth of the run, and the seconds until its end."""
    executor.start(jax.random.key(seed))
    returns, taken, begin = [], [], time.perf_counter()
    for _ in range(10):
        metrics = advance(executor, iterations // 10)
        ended = max(1.0, float(metrics["episode_count"].sum()))
        returns.append(float(metrics["episode_return"].sum()) / ended)
        taken.append(time.perf_counter() - begin)
    return np.array(returns), np.array(taken)


@dataclass(frozen=True)
class Line:
    """The figures of a party."""

    party: Party
    rates: Sequence[float]
    activity: dict[str, float]
    attached: bool | None


def compared(algorithm: Any, parties: Sequence[Party]) -> list[Line]:
    """Measure all parties in turn."""
    rates: dict[str, list[float]] = {party.name: [] for party in parties}
    activity: dict[str, list[dict[str, float]]] = {party.name: [] for party in parties}
    with started(algorithm, parties) as runs:
        counts = {}
        for name, run in runs.items():
            counts[name] = max(1, round(SECONDS / (min(seconds(run, 2), seconds(run, 2)) / 2)))
        for _ in range(ROUNDS):
            for party in parties:
                run, count = runs[party.name], counts[party.name]
                time.sleep(2 * SHORTEST)  # the counters lag behind
                with GpuActivity() as counters:
                    taken = seconds(run, count)
                steps = run.plan.iteration.env_steps * (party.seeds or 1)
                rates[party.name].append(steps * count / taken)
                activity[party.name].append(counters.report())
        attached = {party.name: _attached(runs[party.name]) for party in parties}
    return [
        Line(p, rates[p.name], _mean(activity[p.name]), attached[p.name])
        for p in parties
    ]  # fmt: skip


@contextmanager
def started(algorithm: Any, parties: Sequence[Party]) -> Iterator[dict[str, Executor]]:
    """Yield a compiled executor for each party; they are started at the same time.

    One party of each program compiles it, and the others then get it from the compilation cache.
    """
    with ExitStack() as stack, ThreadPoolExecutor(len(parties)) as pool:
        runs: dict[str, Executor] = {}
        first: dict[Any, Future[None]] = {}
        rest: list[Future[None]] = []

        def start(party: Party, after: Future[None] | None) -> None:
            if after:
                after.result()
            runs[party.name].start(first_key(0, party.seeds))
            advance(runs[party.name], 2)

        for party in parties:
            made = resolve(party.words)(_traced(algorithm, party.envs), Cluster.local())
            runs[party.name] = stack.enter_context(
                closing(make_executor(made, 1 << 20, party.seeds))
            )
            program = _program(made, party)
            if program in first:
                rest.append(pool.submit(start, party, first[program]))
            else:
                first[program] = pool.submit(start, party, None)
        for future in (*first.values(), *rest):
            future.result()
        yield runs


@cache
def _traced(algorithm: Any, num_envs: int) -> Graph:
    """Trace, which takes seconds, once for all parties with as many environments."""
    return trace(algorithm, num_envs)


def _program(made: Plan, party: Party) -> tuple[Any, ...]:
    """Identify what a party compiles."""
    place = made.places[0]
    return (
        party.seeds, len(made.places), made.graph.num_envs // place.replicas, place.replicas > 1,
        made.compiler_flags,
        {part and part.share for part in map(read_slice, place.on)}.pop(), "shared" in party.words,
    )  # fmt: skip


def tell(what: str, lines: Sequence[Line], against: Mapping[str, Sequence[str]]) -> None:
    """Print a line for each party, and one for each other party that it is compared with."""
    known = {line.party.name: line for line in lines}
    for name, line in known.items():
        row = {
            "name": f"{what}: {name}", "value": round(statistics.median(line.rates)),
            "unit": "env steps/s", "spread": [round(min(line.rates)), round(max(line.rates))],
            **line.activity, **({} if line.attached is None else {"attached": line.attached}),
            **machine(),
        }  # fmt: skip
        print(json.dumps(row), flush=True)
        for base in against.get(name, ()):
            ratios = [a / b for a, b in zip(line.rates, known[base].rates, strict=True)]
            row |= {"ratio": round(statistics.median(ratios), 3), "against": base,
                     "spread": [round(min(ratios), 3), round(max(ratios), 3)]}  # fmt: skip
            print(json.dumps(row), flush=True)


def seconds(executor: Executor, iterations: int) -> float:
    start = time.perf_counter()
    advance(executor, iterations)
    return time.perf_counter() - start


def machine() -> dict[str, Any]:
    device = jax.local_devices()[0]
    cores = f"{os.cpu_count()} x {platform.processor() or platform.machine()}"
    flags = {"XLA_FLAGS": x} if (x := os.environ.get("XLA_FLAGS")) else {}
    return {"hardware": f"{device.device_kind}, {cores}", "jax": jax.__version__, **flags}


def _on_gpu() -> bool:
    return jax.default_backend() != "cpu"


def _slices(count: int, *more: str, share: int | None = 100) -> str:
    """Name the strategy; on a CPU slices have even shares of the cores, and take no `share`."""
    shares = [f"share={share}"] if _on_gpu() else []
    return "sliced:" + ",".join([f"slices={count}", *shares, *more])


def _attached(run: Any) -> bool | None:
    """Return True if every process was seen on its slice; None without slices."""
    seen = run.crew.slices.seen if "crew" in vars(run) else {}
    return all(process["verified"] for process in seen.values()) if seen else None


def _mean(reports: Sequence[dict[str, float]]) -> dict[str, float]:
    names = reports[0] if reports else {}
    return _rounded({name: statistics.fmean(x[name] for x in reports) for name in names})


def _rounded(activity: Mapping[str, float]) -> dict[str, float]:
    return {name: round(x, 1) for name, x in activity.items()}


SECTIONS: dict[str, Callable[[PPO, argparse.Namespace], None]] = {
    "grid": whole_grid, "totals": totals, "serving": serving, "seeds": seeds,
    "saturated": saturated, "dedicated": dedicated, "learning": learning,
}  # fmt: skip

if __name__ == "__main__":
    main()
