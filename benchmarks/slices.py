"""Several instances on one GPU: what they gain, over what, and where they do not.

    python benchmarks/slices.py --sections instances serving seeds     # on a machine with a GPU
    python benchmarks/slices.py --sections grid --surface surface.json
    python benchmarks/slices.py --env Pendulum-v1 --scale 64           # anywhere, in little

PPO on the quadruped (16 steps, 4 epochs, 4 minibatches, two layers of 128). All parties of a
section are started, and then take turns, three times; the median is told, with the least and the
greatest. Every line has what the GPU was busy with meanwhile (NVML's GPM counters, percent), and
lines of slices whether every process was seen by the MPS server (`attached`).

    instances   k instances with the same environments each, and with as many in all; processes
                without MPS; the rival: one process whose loops are command buffers
    saturated   the search, where one instance fills the GPU
    grid        every point, and what the search finds of it
    learning    five seeds: return over samples, and over seconds
    seeds       eight agents on eight slices, in one program, one after another
    serving     stepping and acting only
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # others share the GPU

import jax
import numpy as np

from hocket import make
from hocket.algorithms import PPO
from hocket.cluster import Cluster
from hocket.cluster.activity import GpuActivity
from hocket.cluster.search import Point, Score, best, grid, search
from hocket.envs import unroll
from hocket.runtime.cache import enable_cache
from hocket.runtime.executor import Executor, advance
from hocket.searching import measure
from hocket.training import first_key, make_executor, plan

ROUNDS = 3
SECONDS = 1.5
"""About how long one timed run is."""
T_OF_FIVE = 2.776
"""Student's t for 95 % of five samples."""


@dataclass(frozen=True)
class Party:
    """One way to run an algorithm."""

    name: str
    words: str
    envs: int
    """In all."""
    seeds: int | None = None


@dataclass(frozen=True)
class Acting:
    """An agent that steps and acts, and learns nothing: serving."""

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
    parser.add_argument("--scale", type=int, default=1, help="so many times fewer environments")
    parser.add_argument("--surface", type=Path, help="keep the grid's scores in this file")
    options = parser.parse_args()
    enable_cache()
    ppo = PPO(
        env=make(options.env), length=16, epochs=4, minibatches=4, hidden=(128, 128),
        env_steps=1 << 40, anneal=False,
    )  # fmt: skip
    for section in options.sections:
        SECTIONS[section](ppo, options)


def instances(ppo: PPO, options: argparse.Namespace) -> None:
    few, many = 1024 // options.scale, 4096 // options.scale
    one = "sliced:slices=1"
    parties = [
        *(Party(f"{k} x {n}", _slices(k), k * n) for n in (few, many) for k in (1, 2, 4, 8)),
        *(Party(f"1 x {n}", one, n) for n in (2 * many, 4 * many, 8 * many)),
        Party(f"4 x {many}, no MPS", "sliced:slices=4,cut=shared", 4 * many),
        Party(f"1 x {many}, command buffers", f"{one},command_buffers=true", many),
        Party(f"1 x {4 * many}, command buffers", f"{one},command_buffers=true", 4 * many),
        Party(f"4 x {many}, command buffers", f"{_slices(4)},command_buffers=true", 4 * many),
    ]  # fmt: skip
    tell("training", compared(ppo, parties), {
        **{f"{k} x {n}": [f"1 x {n}", f"1 x {k * n}"] if n == many else [f"1 x {n}"]
           for n in (few, many) for k in (2, 4, 8)},
        f"4 x {many}, no MPS": [f"1 x {many}", f"4 x {many}"],
        f"1 x {many}, command buffers": [f"1 x {many}"],
        f"1 x {4 * many}, command buffers": [f"1 x {4 * many}", f"4 x {many}"],
        f"4 x {many}, command buffers": [f"4 x {many}", f"1 x {4 * many}, command buffers"],
    })  # fmt: skip


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
        Party(f"{num} agents, 4 slices", _slices(4), n, num),
    ]
    # Agents one after another are together as fast as one.
    others = {party.name: [parties[0].name] for party in parties[1:]}
    tell(f"seeds, {n} environments each", compared(ppo, parties), others)


def saturated(ppo: PPO, options: argparse.Namespace) -> None:
    wide = replace(ppo, hidden=(1024, 1024))
    found = _searched(wide, (1, 2, 4), [n // options.scale for n in (8192, 16384)])
    chosen = best(found)
    print(json.dumps({
        "name": "search, two layers of 1,024: instances chosen", "value": chosen.point.instances,
        "unit": "instances", "measured": [asdict(score) for score in found], **machine(),
    }), flush=True)  # fmt: skip


def whole_grid(ppo: PPO, options: argparse.Namespace) -> None:
    counts, envs = (1, 2, 4, 8), [n // options.scale for n in (1024, 4096, 16384)]
    on_gpu = jax.default_backend() != "cpu"
    points = grid(counts, envs, on_gpu)
    if on_gpu:
        points += [Point(1, n, command_buffers=True) for n in envs]
    scores: dict[Point, Score] = {}
    for point in points:
        scores[point] = measure(ppo, point, SECONDS, Cluster.local())
        score = scores[point]
        print(json.dumps({
            "name": f"grid: {point}", "value": round(score.value), "unit": "env steps/s",
            "spread": [round(x) for x in score.spread], **score.activity, "failed": score.failed,
        }), flush=True)  # fmt: skip
        if options.surface:
            about = {"about": machine(), "scores": [asdict(s) for s in scores.values()]}
            options.surface.write_text(json.dumps(about, indent=1))
    found = search(scores.__getitem__, counts, envs, shares=on_gpu)
    top = max(scores[p].value for p in points if not p.command_buffers)
    print(json.dumps({
        "name": f"search on the grid: {best(found).point}", "value": round(best(found).value),
        "unit": "env steps/s", "ratio": round(best(found).value / top, 3),
        "against": f"the best of {len(scores)} points", "points": len(found), **machine(),
    }), flush=True)  # fmt: skip


def learning(ppo: PPO, options: argparse.Namespace) -> None:
    n, iterations = 4096 // options.scale, 150
    parties = [Party(f"1 x {4 * n}", "sliced:slices=1", 4 * n),
               Party(f"4 x {n}", _slices(4), 4 * n)]  # fmt: skip
    with started(ppo, parties) as runs:
        curves = {party.name: [] for party in parties}
        for seed in range(5):
            for party in parties:
                curves[party.name].append(learn(runs[party.name], seed, iterations))
    for name, found in curves.items():
        returns, seconds = (np.stack([run[k] for run in found]) for k in (0, 1))
        mean = returns.mean(0)
        half = T_OF_FIVE * returns.std(0, ddof=1) / np.sqrt(len(found))
        print(json.dumps({
            "name": f"learning: {name}, five seeds", "value": round(float(mean[-1]), 1),
            "unit": "return", "interval": [round(float(x), 1) for x in (mean - half)[-1:]]
            + [round(float(x), 1) for x in (mean + half)[-1:]],
            "seconds": round(float(seconds[:, -1].mean()), 2),
            "mean": [round(float(x), 2) for x in mean], "half": [round(float(x), 2) for x in half],
            "at_seconds": [round(float(x), 2) for x in seconds.mean(0)],
            "samples_each": 4 * n * ppo.length * iterations // 10, **machine(),
        }), flush=True)  # fmt: skip


def learn(executor: Executor, seed: int, iterations: int) -> tuple[np.ndarray, np.ndarray]:
    """The return of the episodes that ended in each tenth of a run, and the seconds until then."""
    executor.start(jax.random.key(seed))
    returns, seconds, begin = [], [], time.perf_counter()
    for _ in range(10):
        metrics = advance(executor, iterations // 10)
        ended = max(1.0, float(metrics["episode_count"].sum()))
        returns.append(float(metrics["episode_return"].sum()) / ended)
        seconds.append(time.perf_counter() - begin)
    return np.array(returns), np.array(seconds)


@dataclass(frozen=True)
class Line:
    """What was measured of a party."""

    party: Party
    rates: Sequence[float]
    activity: dict[str, float]
    attached: bool | None


def compared(algorithm: Any, parties: Sequence[Party]) -> list[Line]:
    """All parties, taking turns."""
    rates: dict[str, list[float]] = {party.name: [] for party in parties}
    activity: dict[str, list[dict[str, float]]] = {party.name: [] for party in parties}
    with started(algorithm, parties) as runs:
        counts = {}
        for name, run in runs.items():
            counts[name] = max(1, round(SECONDS / (seconds(run, 2) / 2)))
        for _ in range(ROUNDS):
            for party in parties:
                run, count = runs[party.name], counts[party.name]
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
    """An executor for each party, compiled; they start side by side."""
    with ExitStack() as stack:
        runs: dict[str, Executor] = {}
        for party in parties:
            made = plan(algorithm, distribute=party.words, num_envs=party.envs)
            runs[party.name] = make_executor(made, 1 << 20, party.seeds)
            stack.enter_context(closing(runs[party.name]))

        def start(party: Party) -> None:
            runs[party.name].start(first_key(0, party.seeds))
            advance(runs[party.name], 2)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(start, parties))
        yield runs


def tell(what: str, lines: Sequence[Line], against: dict[str, Sequence[str]]) -> None:
    """A line for each party, and one for each other that it is compared with."""
    known = {line.party.name: line for line in lines}
    for name, line in known.items():
        told = {
            "name": f"{what}: {name}", "value": round(statistics.median(line.rates)),
            "unit": "env steps/s", "spread": [round(min(line.rates)), round(max(line.rates))],
            **line.activity, **({} if line.attached is None else {"attached": line.attached}),
            **machine(),
        }  # fmt: skip
        print(json.dumps(told), flush=True)
        for base in against.get(name, ()):
            ratios = [a / b for a, b in zip(line.rates, known[base].rates, strict=True)]
            told |= {"ratio": round(statistics.median(ratios), 3), "against": base,
                     "spread": [round(min(ratios), 3), round(max(ratios), 3)]}  # fmt: skip
            print(json.dumps(told), flush=True)


def seconds(executor: Executor, iterations: int) -> float:
    start = time.perf_counter()
    advance(executor, iterations)
    return time.perf_counter() - start


def machine() -> dict[str, Any]:
    device = jax.local_devices()[0]
    cores = f"{os.cpu_count()} x {platform.processor() or platform.machine()}"
    return {"hardware": f"{device.device_kind}, {cores}", "jax": jax.__version__}


def _searched(ppo: PPO, counts: Sequence[int], envs: Sequence[int]) -> list[Score]:
    on_gpu = jax.default_backend() != "cpu"
    return search(
        lambda point: measure(ppo, point, SECONDS, Cluster.local()), counts, envs, shares=on_gpu
    )


def _slices(count: int) -> str:
    return f"sliced:slices={count},share=100"


def _attached(run: Any) -> bool | None:
    """Whether every process was seen on its slice; None where it is not on one."""
    seen = run.crew.slices.seen if "crew" in vars(run) else {}
    return all(found["verified"] for found in seen.values()) if seen else None


def _mean(found: Sequence[dict[str, float]]) -> dict[str, float]:
    names = found[0] if found else {}
    return {name: round(statistics.fmean(x[name] for x in found), 1) for name in names}


SECTIONS: dict[str, Callable[[PPO, argparse.Namespace], None]] = {
    "instances": instances, "serving": serving, "seeds": seeds, "saturated": saturated,
    "grid": whole_grid, "learning": learning,
}  # fmt: skip

if __name__ == "__main__":
    main()
