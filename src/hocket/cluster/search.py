"""A search for the fastest way to cut a device into instances.

It varies how many instances there are, how many environments each has, and which share of the
device each may use.

GMI-DRL (Wang et al. 2022) profiles one instance and predicts the speed of several, so it does not
see how they slow each other down. Here every point is measured, with all its instances at once.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from hocket.errors import PlanError

GAIN = 1.05
"""The factor of speedup that makes a step to more instances worth it. After a smaller speedup, the
search no longer tries the next larger number of instances with as many environments in each."""
FEW = 3
"""The search may always measure this many points, however small the grid is."""
TIE = 1.02
"""The factor by which several instances must be faster than a single one to be chosen. If the
ranges of their measurements overlap, `GAIN` is used instead of this factor."""


@dataclass(frozen=True)
class Point:
    """One way to cut a device into instances, which the search can measure."""

    instances: int
    envs: int
    """The number of environments in each instance."""
    share: int | None = 100
    """The percentage of the device that each instance may use; None if fixed, as on a CPU."""
    command_buffers: bool = False

    def __str__(self) -> str:
        share = f" at {self.share} %" if (self.share or 100) < 100 else ""
        buffers = ", command buffers" if self.command_buffers else ""
        return f"{self.instances} x {self.envs:,} environments{share}{buffers}"


@dataclass(frozen=True)
class Score:
    """The measured speed of a point, which is one way to cut a device."""

    point: Point
    value: float
    """Environment steps per second of all instances together; 0 if the point could not run."""
    spread: tuple[float, float] = (0.0, 0.0)
    """The slowest and the fastest measurement, in environment steps per second."""
    activity: Mapping[str, float] = field(default_factory=dict)
    """How busy each part of the GPU was during the measurement, in percent."""
    failed: str = ""


Measure = Callable[[Point], Score]


def search(
    measure: Measure,
    instances: Sequence[int],
    envs: Sequence[int],
    *,
    shares: bool = False,
    buffers: bool = False,
) -> list[Score]:
    """Measure points by hill climbing, and return their scores in the order of measurement.

    `best` chooses one of the scores. A point is one way to cut a device into instances.

    The climb begins with the fewest instances and the most environments that they can run. From the
    best point so far it tries, in this order: more instances, the most instances, more instances
    with fewer environments each, and fewer environments. With `shares`, each of k instances first
    gets 200/k percent of the device, then all of it. At most a third of all points is measured, or
    three points if that is more. Points with more environments than the fewest instances can run
    are not counted. With `buffers`, two more points are measured with command buffers: the best one
    so far, and a single instance to compare it with.
    """
    seen: dict[Point, Score] = {}
    whole = 100 if shares else None
    flat: set[int] = set()  # numbers of environments for which more instances gain too little

    def score(point: Point) -> float:
        if point not in seen:
            seen[point] = measure(point)
        return seen[point].value

    # A number of environments that does not fit with few instances does not fit with more.
    alone = [Point(min(instances), n, whole) for n in sorted(envs, reverse=True)]
    at = next((point for point in alone if score(point) > 0), None)
    if at is None:
        return list(seen.values())
    # The measurements that failed do not count against `room`.
    envs, failed = [n for n in envs if n <= at.envs], len(seen) - 1
    room = max(FEW, len(grid(instances, envs, shares)) // 3)
    while len(seen) - failed < room:
        wider = () if at.envs in flat else instances
        near = _neighbours(at, instances, envs, wider, shares)
        to = next((p for p in near if p not in seen), None)
        if to is None:
            break
        if to.instances > at.instances and to.envs == at.envs and score(to) < GAIN * score(at):
            flat.add(at.envs)
        if score(to) > score(at):
            at = to
    if buffers:
        score(replace(best(list(seen.values())).point, command_buffers=True))
        score(Point(1, max(envs), whole, command_buffers=True))
    return list(seen.values())


def best(scores: Sequence[Score]) -> Score:
    """Return the score of the fastest point, or of a single instance if that is almost as fast."""
    fastest = max(scores, key=lambda score: score.value)
    alone = [score for score in scores if score.point.instances == 1]
    rival = max(alone, key=lambda score: score.value, default=fastest)
    gain = GAIN if rival.spread[1] > fastest.spread[0] else TIE
    return rival if rival.value * gain >= fastest.value else fastest


def grid(instances: Sequence[int], envs: Sequence[int], shares: bool) -> list[Point]:
    """Return all points that a search can choose from."""
    points = [
        Point(k, n, share)
        for k in instances
        for n in envs
        for share in ((100, advised(k)) if shares else (None,))
    ]
    return list(dict.fromkeys(points))


def advised(instances: int) -> int:
    """Return the percentage of a device that NVIDIA advises for each of several instances.

    It is twice an even share, because instances are seldom all busy at the same time.
    """
    return min(100, 200 // instances)


def _neighbours(
    at: Point, instances: Sequence[int], envs: Sequence[int], wider: Sequence[int], shares: bool
) -> Iterator[Point]:
    """Yield the points to try after `at`, most promising first.

    The first point has the next larger number of instances. It is left out if that number is not in
    `wider`, the numbers of instances that may still bring a gain.
    """

    def usual(k: int, n: int) -> Point:
        return Point(k, n, advised(k) if shares else None)

    more = [k for k in sorted(instances) if k > at.instances][:1]
    fewer = [n for n in sorted(envs, reverse=True) if n < at.envs][:1]
    yield from (usual(k, at.envs) for k in more if k in wider)
    yield usual(max(instances), at.envs)
    yield from (usual(k, n) for k in more for n in fewer)
    if shares:
        yield replace(at, share=100)
    yield from (replace(at, envs=n) for n in fewer)


@dataclass(frozen=True)
class Found:
    """The stored outcome of a search: the conditions that it holds for, and all measurements."""

    about: dict[str, Any]
    """The conditions of the search: the devices, the versions of the driver and jax, and the
    algorithm with its settings. Later runs use the outcome only under the same conditions."""
    scores: tuple[Score, ...]

    @property
    def best(self) -> Score:
        return best(self.scores)

    def save(self) -> Path:
        """Store the outcome in the user's cache directory, for later runs."""
        path = room_for(self.about)
        path.write_text(json.dumps(asdict(self), indent=1))
        return path

    @staticmethod
    def load(about: dict[str, Any]) -> Found | None:
        """Load the outcome of an earlier search with the same `about`; None if there was none."""
        path = _path(about)
        return Found(about, read_scores(path)) if path.is_file() else None


def room_for(about: dict[str, Any]) -> Path:
    """Return the path where an outcome is stored, after checking that its folder is writable."""
    path = _path(about)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise PlanError(
            f"the outcome of the search could not be stored: {error}. Set XDG_CACHE_HOME to a "
            f"folder that can be written to."
        ) from error
    return path


def read_scores(path: Path) -> tuple[Score, ...]:
    """Read the scores from a file that `Found.save` wrote."""
    rows = json.loads(path.read_text())["scores"]
    return tuple(
        Score(**{**row, "point": Point(**row["point"]), "spread": tuple(row["spread"])})
        for row in rows
    )


def _path(about: dict[str, Any]) -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]
    return Path(root) / "hocket" / "search" / f"{digest}.json"
