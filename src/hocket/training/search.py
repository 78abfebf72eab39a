"""`hocket plan ALGORITHM --search`: measures how best to cut this machine's devices into slices."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import jax

from hocket.cluster import Cluster
from hocket.cluster.nvidia.activity import GpuActivity
from hocket.cluster.search import Found, Point, Score, best, room_for, search
from hocket.core.program.algorithm import Algorithm
from hocket.errors import PlanError
from hocket.runtime.compile.cache import enable_cache
from hocket.runtime.executor import Executor, advance
from hocket.strategies.sliced import about_search, sliced
from hocket.system.cores import usable_cores
from hocket.training.loop import make_executor, plan

INSTANCES = (1, 2, 4, 8)
ENVS = (1, 4, 16)
"""Environments per instance, as multiples of the algorithm's own number."""
SECONDS = 3.0
"""The seconds for which each combination of settings is measured, after it has been compiled."""
PARTS = 3
"""The number of times that each combination of settings is measured, to show the spread."""


def search_here(
    algorithm: Algorithm,
    *,
    instances: Sequence[int] | None = None,
    envs: Sequence[int] | None = None,
    devices: int | None = None,
    seconds: float = SECONDS,
    tell: Callable[[Score], None] = lambda score: None,
) -> Found:
    """Measure several ways to cut the devices of this machine, or the first `devices` of them.

    The results are saved, and `sliced(search=True)` uses the best one. A slice of a CPU is a
    process on some of its cores, so the search tries no more instances than there are cores.
    """
    cluster = Cluster.local().first(devices, "the search")
    on_gpu = not cluster.devices[0].id.is_host
    envs = envs or [n * algorithm.num_envs for n in ENVS]
    most = max(INSTANCES) if on_gpu else usable_cores()
    instances = instances or [k for k in INSTANCES if k <= most]
    if min(*envs, *instances, 1) < 1 or 1 not in instances:
        raise ValueError(
            f"`envs` and `instances` must be numbers from 1 on, `instances` with 1 among them: "
            f"found envs={list(envs)} and instances={list(instances)}."
        )

    def scored(point: Point) -> Score:
        score = measure(algorithm, point, seconds, cluster)
        tell(score)
        return score

    about = about_search(algorithm, cluster)
    room_for(about)  # refuse before the search, which takes minutes, and not after it
    scores = search(scored, instances, envs, shares=on_gpu, buffers=on_gpu)
    if all(score.failed for score in scores):
        raise PlanError(f"nothing could be measured: {scores[-1].failed}")
    results = Found(about, tuple(scores))
    results.save()
    return results


def measure(algorithm: Algorithm, point: Point, seconds: float, cluster: Cluster) -> Score:
    """Measure one way to cut the devices, with all its instances at once.

    The score is in environment steps per second, or 0 if the instances cannot run.
    """
    total = point.instances * point.envs * len(cluster.devices)
    strategy = sliced(
        slices=point.instances, share=point.share, devices=len(cluster.devices),
        command_buffers=point.command_buffers,
    )  # fmt: skip
    try:
        made = plan(algorithm, distribute=strategy, num_envs=total)
        if made.places[0].replicas != point.instances * len(cluster.devices):
            return Score(point, 0.0, failed="; ".join(made.notes))
        with closing(make_executor(made, 1 << 30)) as executor:
            return measure_rate(executor, point, seconds)
    except (RuntimeError, ValueError, OSError) as error:  # out of memory is a RuntimeError of jax's
        return Score(point, 0.0, failed=reason(str(error)))


def reason(message: str) -> str:
    """Return the line that says what went wrong: in a traceback, the last line with an error."""
    lines = message.strip().splitlines() or ["no reason was given"]
    named = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
    return (named or lines[:1])[-1]


def measure_rate(executor: Executor, point: Point, seconds: float) -> Score:
    """Measure the environment steps per second of a plan, after it has been compiled."""
    enable_cache()
    executor.start(jax.random.key(0))
    advance(executor, 1)  # compiles
    taken = min(_seconds(executor, 2) for _ in range(2)) / 2
    count = max(1, round(seconds / PARTS / taken))
    steps = count * executor.plan.iteration.env_steps
    with GpuActivity() as activity:
        rates = [steps / _seconds(executor, count) for _ in range(PARTS)]
    return Score(point, statistics.median(rates), (min(rates), max(rates)), activity.report())


def told(score: Score) -> str:
    """Return a score as a line of text, to be shown during the search."""
    return f"{score.point}: {score.failed or f'{score.value:,.0f} environment steps/s'}"


def table(scores: Sequence[Score]) -> str:
    """Return a table of all scores. It marks the best, and compares it with a single instance."""
    chosen = best(scores)
    rows = [_row(score, chosen) for score in scores]
    alone = max((s for s in scores if s.point.instances == 1), key=lambda score: score.value)
    verdict = (
        "one instance is best"
        if chosen.point.instances == 1
        else f"{chosen.value / alone.value:.2f} x {alone.point}, the best measured of one instance"
    )
    head = f"{'instances':>9}{'envs each':>11}{'share':>7}  {'env steps/s':>13}  spread"
    return "\n".join([head, *rows, f"best: {chosen.point}: {verdict}"])


def _row(score: Score, chosen: Score) -> str:
    point = score.point
    share = "-" if point.share is None else f"{point.share}%"
    start = f"{point.instances:>9}{point.envs:>11,}{share:>7}"
    if score.failed:
        return f"{start}  cannot run: {score.failed}"
    low, high = score.spread
    busy = (
        f"  SMs busy {score.activity['sm_active']:.0f} %" if "sm_active" in score.activity else ""
    )
    buffers = "  command buffers" if point.command_buffers else ""
    mark = "  <- best" if score == chosen else ""
    spread = f"{low / score.value - 1:+.0%} {high / score.value - 1:+.0%}"
    return f"{start}  {score.value:>13,.0f}  {spread}{busy}{buffers}{mark}"


def draw(scores: Sequence[Score], out: Path) -> None:
    """Draw the scores, with a line for each way to cut a device."""
    from hocket.report.surface import Series, draw_surface

    lines = []
    for cut in dict.fromkeys(replace(s.point, envs=0) for s in scores):
        mine = [s for s in scores if not s.failed and replace(s.point, envs=0) == cut]
        mine.sort(key=lambda s: s.point.envs)
        label = f"{cut.instances} instance{'s' * (cut.instances != 1)}"
        label += f" at {cut.share} %" if (cut.share or 100) < 100 else ""
        label += ", command buffers" if cut.command_buffers else ""
        xs, ys = [s.point.envs for s in mine], [s.value for s in mine]
        lines.append(Series(label, xs, ys, [s.spread for s in mine]))
    chosen = best(scores)
    draw_surface(lines, (chosen.point.envs, chosen.value), out)


def _seconds(executor: Executor, iterations: int) -> float:
    start = time.perf_counter()
    advance(executor, iterations)
    return time.perf_counter() - start
