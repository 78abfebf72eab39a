"""`hocket plan ALGO --search`: how this machine's devices are best cut for an algorithm."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import jax

from hocket.cluster import Cluster
from hocket.cluster.devices import usable_cores
from hocket.cluster.nvidia.activity import GpuActivity
from hocket.cluster.search import Found, Point, Score, best, room_for, search
from hocket.core.program.algorithm import Algorithm
from hocket.errors import PlanError
from hocket.runtime.compile.cache import enable_cache
from hocket.runtime.executor import Executor, advance
from hocket.strategies.sliced import about_search, sliced
from hocket.training.loop import make_executor, plan

INSTANCES = (1, 2, 4, 8)
ENVS = (1, 4, 16)
"""Environments of an instance, as multiples of the algorithm's own number."""
SECONDS = 3.0
"""How long a point is measured, once it is compiled."""
PARTS = 3
"""A point is measured in so many parts, whose spread is told."""


def search_here(
    algorithm: Algorithm,
    *,
    instances: Sequence[int] | None = None,
    envs: Sequence[int] | None = None,
    devices: int | None = None,
    seconds: float = SECONDS,
    tell: Callable[[Score], None] = lambda score: None,
) -> Found:
    """Measure several cuts of this machine's (first) `devices`, and keep what was found.

    On a CPU a slice is a process on some of the cores, so no more are tried than there are cores.
    `sliced(search=True)` then uses the best.
    """
    cluster = Cluster.local().first(devices, "the search")
    on_gpu = not cluster.devices[0].id.is_host
    envs = envs or [n * algorithm.num_envs for n in ENVS]
    most = max(INSTANCES) if on_gpu else usable_cores()
    instances = instances or [k for k in INSTANCES if k <= most]
    if min(*envs, *instances, 1) < 1 or 1 not in instances:
        raise ValueError(
            f"a search needs numbers of environments, and of instances with 1 among them: found "
            f"{list(envs)} and {list(instances)}."
        )

    def scored(point: Point) -> Score:
        score = measure(algorithm, point, seconds, cluster)
        tell(score)
        return score

    about = about_search(algorithm, cluster)
    room_for(about)  # both can be refused, before anything starts
    scores = search(scored, instances, envs, shares=on_gpu, buffers=on_gpu)
    if all(score.failed for score in scores):
        raise PlanError(f"nothing could be measured: {scores[-1].failed}")
    outcome = Found(about, tuple(scores))
    outcome.save()
    return outcome


def measure(algorithm: Algorithm, point: Point, seconds: float, cluster: Cluster) -> Score:
    """Run all instances of a point together for a while; a point that cannot run has no score."""
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
    """The line that says what went wrong: of a traceback the last that names an error."""
    lines = message.strip().splitlines() or ["no reason was given"]
    named = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
    return (named or lines[:1])[-1]


def measure_rate(executor: Executor, point: Point, seconds: float) -> Score:
    """The environment steps a second of a plan, from when nothing is special any more."""
    enable_cache()
    executor.start(jax.random.key(0))
    advance(executor, 1)  # compiles
    taken = min(_seconds(executor, 2) for _ in range(2)) / 2
    count = max(1, round(seconds / PARTS / taken))
    with GpuActivity() as activity:
        parts = [count / _seconds(executor, count) for _ in range(PARTS)]
    steps = executor.plan.iteration.env_steps
    rates = [steps * rate for rate in parts]
    return Score(point, statistics.median(rates), (min(rates), max(rates)), activity.report())


def told(score: Score) -> str:
    """One score, while the search goes on."""
    return f"{score.point}: {score.failed or f'{score.value:,.0f} environment steps/s'}"


def table(scores: Sequence[Score]) -> str:
    """Every point with its score, the best marked, and what it gains."""
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
    """The measured surface as a picture."""
    from hocket.report.surface import Series, draw_surface

    names = dict.fromkeys((s.point.instances, s.point.share, s.point.command_buffers)
                          for s in scores)  # fmt: skip
    lines = []
    for instances, share, buffers in names:
        mine = sorted(
            (s for s in scores if not s.failed
             and (s.point.instances, s.point.share, s.point.command_buffers)
             == (instances, share, buffers)),
            key=lambda s: s.point.envs,
        )  # fmt: skip
        label = f"{instances} instance{'s' * (instances != 1)}"
        label += f" at {share} %" if (share or 100) < 100 else ""
        label += ", command buffers" if buffers else ""
        xs, ys = [s.point.envs for s in mine], [s.value for s in mine]
        lines.append(Series(label, xs, ys, [s.spread for s in mine]))
    chosen = best(scores)
    draw_surface(lines, (chosen.point.envs, chosen.value), out)


def _seconds(executor: Executor, iterations: int) -> float:
    start = time.perf_counter()
    advance(executor, iterations)
    return time.perf_counter() - start
