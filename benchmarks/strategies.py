"""Compare strategies by the number of environments, the network, and the delay of a crossing.

    python benchmarks/strategies.py --plot docs/pictures/strategies.png | tee strategies.jsonl
    python benchmarks/strategies.py --sweeps delay --rounds 5
    python benchmarks/strategies.py --read strategies.jsonl --plot strategies.png   # draw only

PPO on CartPole (64 steps, 2 epochs, 4 minibatches). One quantity is changed at a time, starting
from 256 environments, two layers of 64 and no delay. Except under `anakin`, every instance is a
process of its own, so messages go through shared memory; the delay is added to each of them. The
strategies take turns. All are synchronous and compute the same numbers, except the one with
`lag=1`. Prints one JSON line per point; a ratio above 1 means faster than anakin. `others` is the
number of cores that the rest of the machine used: if it is not small, many threads look better than
they are.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import jax
from split import Meter, quieter_half

from hocket import Mean, make
from hocket.algorithms import PPO
from hocket.core.plan.traffic import flows
from hocket.runtime.compile.cache import enable_cache
from hocket.runtime.executor import Executor, advance
from hocket.runtime.launch import launch_named
from hocket.strategies import resolve
from hocket.training.loop import make_executor, plan

STRATEGIES = {
    "anakin": "anakin",
    "data_parallel": "data_parallel:replicas=2",
    "actor_learner": "actor_learner:actors=2",
    "central_inference": "central_inference:envs=2",
    "actor_learner, lag=1": "actor_learner:actors=1,lag=1",
}
LATE = "actor_learner, lag=1"
SWEEPS: dict[str, list[float]] = {
    "envs": [16, 64, 256, 1024, 4096],
    "hidden": [16, 64, 256],
    "delay": [0.0, 1e-4, 1e-3, 1e-2],
}
BASE = {"envs": 256, "hidden": 64, "delay": 0.0}
LENGTH = 64
SECONDS = 0.5
"""The approximate length of one timed run."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sweeps", nargs="+", choices=SWEEPS, default=list(SWEEPS))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--plot", type=Path, help="draw the figure into this file")
    parser.add_argument("--read", type=Path, help="use the lines of an earlier run")
    options = parser.parse_args()
    if options.read:
        lines = [json.loads(line) for line in options.read.read_text().splitlines()]
    else:
        lines = measure(options.sweeps, options.rounds)
    if options.plot:
        draw(lines, options.plot)


def measure(sweeps: list[str], rounds: int) -> list[dict[str, Any]]:
    enable_cache()
    hardware = f"{os.cpu_count()} x {platform.processor() or platform.machine()}"
    points = [{**BASE, name: x} for name in sweeps for x in SWEEPS[name]]
    lines = []
    for number, point in enumerate(points):
        if point in points[:number]:
            continue  # the base point is in every sweep
        for line in compare(point, rounds):
            line |= {"hardware": hardware, "jax": jax.__version__}
            print(json.dumps(line), flush=True)
            lines.append(line)
    return lines


def compare(point: dict[str, Any], rounds: int) -> list[dict[str, Any]]:
    algorithm = PPO(
        env=make("CartPole-v1"), num_envs=point["envs"], length=LENGTH, epochs=2, minibatches=4,
        hidden=(point["hidden"],) * 2,
    )  # fmt: skip
    with ExitStack() as stack:
        runs, counts = {}, {}
        for name in STRATEGIES:
            executor = started(algorithm, name, point["delay"])
            stack.enter_context(closing(executor))
            runs[name] = executor
            counts[name] = max(1, round(SECONDS / timed(executor, 1)))
        measured, meter = [], Meter()
        for _ in range(rounds):
            meter.cores()
            each = {name: timed(run, counts[name]) / counts[name] for name, run in runs.items()}
            measured.append((each, meter.cores()[1]))
    kept = quieter_half(measured, lambda turn: turn[1])
    title = f"{point['envs']} envs, hidden {point['hidden']}, delay {1e3 * point['delay']:g} ms"
    lines = []
    for name in STRATEGIES:
        seconds = statistics.median(each[name] for each, _ in kept)
        ratios = [each["anakin"] / each[name] for each, _ in kept]
        line = {
            "name": f"ppo cartpole, {title}: {name}",
            "value": round(point["envs"] * LENGTH / seconds), "unit": "env steps/s",
            "ratio": round(statistics.median(ratios), 3), "against": "anakin",
            "spread": [round(min(ratios), 3), round(max(ratios), 3)],
            "others": round(max(others for _, others in kept), 2), "strategy": name, **point,
        }  # fmt: skip
        lines.append({**line, "note": "not the fused program's numbers"} if name == LATE else line)
    return lines


def started(algorithm: Any, name: str, delay: float) -> Executor:
    where = resolve(STRATEGIES[name]) if name == "anakin" else slowed(STRATEGIES[name], delay)
    executor = make_executor(plan(algorithm, distribute=where), 1_000)
    executor.start(jax.random.key(0))
    advance(executor, 2)
    return executor


def slowed(words: str, delay: float) -> Callable[..., Any]:
    """Make that strategy run as processes, with a delay on every message and mean."""

    def where(graph: Any, cluster: Any) -> Any:
        made = dataclasses.replace(resolve(words)(graph, cluster), launch=launch_named("processes"))
        channels = {
            f"{flow.source} -> {flow.target}": dataclasses.replace(
                made.channel(flow.source, flow.target), delay=delay
            )
            for flow in flows(made)
        }
        means = dict.fromkeys(made.averaging, Mean(delay=delay))
        return dataclasses.replace(made, channels=channels, means=means)

    return where


def timed(executor: Executor, iterations: int) -> float:
    start = time.perf_counter()
    advance(executor, iterations)
    return time.perf_counter() - start


# The figure

COLORS = {
    "anakin": "#1b1b1b",
    "data_parallel": "#0072b2",
    "actor_learner": "#d55e00",
    "central_inference": "#009e73",
    LATE: "#d55e00",
}
TICKS = [0.01, 0.03, 0.1, 0.3, 1.0, 3.0]
APART = 0.13
"""The least distance of two names, in decades."""
AXES = {"envs": "environments", "hidden": "width of the network", "delay": "delay of a crossing"}


def draw(lines: list[dict[str, Any]], path: Path) -> None:
    """Draw a panel for each quantity and a line for each strategy, named at its end.

    The lines are ratios: points of one line were measured minutes apart, those of one column not.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, panels = plt.subplots(1, 3, figsize=(10.5, 3.4), sharey=True, layout="constrained")
    for panel, sweep in zip(panels, SWEEPS, strict=True):
        others = {key: value for key, value in BASE.items() if key != sweep}
        mine = [line for line in lines if all(line[k] == v for k, v in others.items())]
        ends = {name: draw_line(panel, sweep, mine, name) for name in STRATEGIES}
        label_ends(panel, ends)
        name_axes(panel, sweep)
    panels[0].set_ylabel("speed, against one program")
    figure.savefig(path, dpi=160)


def draw_line(
    panel: Any, sweep: str, lines: list[dict[str, Any]], name: str
) -> tuple[float, float]:
    points = sorted((_shown(sweep, x[sweep]), x["ratio"]) for x in lines if x["strategy"] == name)
    xs, ys = zip(*points, strict=True)
    style = {"linestyle": (0, (4, 2)), "marker": "o"} if name == LATE else {"marker": "o"}
    panel.plot(xs, ys, color=COLORS[name], linewidth=1.5, markersize=3.5, **style)
    return xs[-1], ys[-1]


def label_ends(panel: Any, ends: dict[str, tuple[float, float]]) -> None:
    """Write names beside the ends of lines, moved apart where they would touch."""
    order = sorted(ends, key=lambda name: ends[name][1])
    at = [math.log10(ends[name][1]) for name in order]
    for _ in range(200):
        for k in range(len(at) - 1):
            push = max(0.0, APART - (at[k + 1] - at[k])) / 2
            at[k], at[k + 1] = at[k] - push, at[k + 1] + push
    for name, y in zip(order, at, strict=True):
        panel.annotate(
            name, (ends[name][0], 10**y), xytext=(7, 0), textcoords="offset points", va="center",
            color=COLORS[name], fontsize=8,
        )  # fmt: skip


def name_axes(panel: Any, sweep: str) -> None:
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_yticks(TICKS, [f"{y:g}" for y in TICKS])
    ticks = SWEEPS[sweep]
    panel.set_xticks([_shown(sweep, x) for x in ticks], [_tick(sweep, x) for x in ticks])
    panel.minorticks_off()
    panel.set_xlabel(AXES[sweep])
    panel.grid(axis="y", color="#dddddd", linewidth=0.6)
    rest = {
        "envs": "2 x 64 network, no delay",
        "hidden": "256 environments, no delay",
        "delay": "256 environments, 2 x 64 network",
    }
    panel.set_title(rest[sweep], fontsize=9, loc="left", color="#555555")


def _shown(sweep: str, x: float) -> float:
    """Place no delay, which has no logarithm, one decade below the smallest."""
    return x or (SWEEPS[sweep][1] / 10)


def _tick(sweep: str, x: float) -> str:
    if sweep != "delay":
        return f"{x:,.0f}"
    return f"{1e3 * x:g} ms" if x else "none"


if __name__ == "__main__":
    main()
