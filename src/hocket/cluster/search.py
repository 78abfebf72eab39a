"""How a device is best cut: instances, environments of each, share. Every point is measured.

GMI-DRL (Wang et al. 2022) profiles one instance and projects what several would do, so it does not
see how they get in each other's way. Here all instances of a point run together.
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
"""Where more instances gain less than this, still more with as many environments are not tried."""
FEW = 3
"""Points that are measured of a grid however small."""
TIE = 1.02
"""Several instances that are not so much faster than one are not worth it; nor are those that gain
less than `GAIN` and were not always faster."""


@dataclass(frozen=True)
class Point:
    """One way to cut a device."""

    instances: int
    envs: int
    """Environments of each instance."""
    share: int | None = 100
    """Percent of the device that each may use; None where that is not chosen, as on a CPU."""
    command_buffers: bool = False

    def __str__(self) -> str:
        share = f" at {self.share} %" if (self.share or 100) < 100 else ""
        buffers = ", command buffers" if self.command_buffers else ""
        return f"{self.instances} x {self.envs:,} environments{share}{buffers}"


@dataclass(frozen=True)
class Score:
    """The measurement of a point."""

    point: Point
    value: float
    """Environment steps a second of all instances together; 0 where it could not run."""
    spread: tuple[float, float] = (0.0, 0.0)
    """The slowest and the fastest of the times it was measured."""
    activity: Mapping[str, float] = field(default_factory=dict)
    """How busy each part of the GPU was meanwhile, in percent."""
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
    """Every point that was measured, in order; `best` says which to use.

    From the fewest instances, with the most environments that these can run, it climbs: to more
    instances, to the most of them, to more with fewer environments each, to fewer environments.
    With `shares` each has 200/k percent on the way, and then all. At most a third of the grid that
    one instance can run is measured, or three points; besides, with `buffers`, the best point and
    one instance with command buffers, the rival of several instances.
    """
    seen: dict[Point, Score] = {}
    whole = 100 if shares else None
    flat: set[int] = set()  # numbers of environments with which more instances gain too little

    def score(point: Point) -> float:
        if point not in seen:
            seen[point] = measure(point)
        return seen[point].value

    # What does not fit with few instances fits less with more of them.
    alone = [Point(min(instances), n, whole) for n in sorted(envs, reverse=True)]
    at = next((point for point in alone if score(point) > 0), None)
    if at is None:
        return list(seen.values())
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
    """The fastest point; one instance where several are hardly faster."""
    fastest = max(scores, key=lambda score: score.value)
    alone = [score for score in scores if score.point.instances == 1]
    rival = max(alone, key=lambda score: score.value, default=fastest)
    gain = GAIN if rival.spread[1] > fastest.spread[0] else TIE
    return rival if rival.value * gain >= fastest.value else fastest


def grid(instances: Sequence[int], envs: Sequence[int], shares: bool) -> list[Point]:
    """All points that a search chooses from."""
    points = [
        Point(k, n, share)
        for k in instances
        for n in envs
        for share in ((100, advised(k)) if shares else (None,))
    ]
    return list(dict.fromkeys(points))


def advised(instances: int) -> int:
    """The share that NVIDIA advises: not all at once need all of theirs."""
    return min(100, 200 // instances)


def _neighbours(
    at: Point, instances: Sequence[int], envs: Sequence[int], wider: Sequence[int], shares: bool
) -> Iterator[Point]:
    """Where to go from a point, the most promising first; `wider`: with as many environments."""

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
    """The outcome of a search, as it is kept: for whom, and all that was measured."""

    about: dict[str, Any]
    """The devices, the driver, jax, the algorithm with its environment and network."""
    scores: tuple[Score, ...]

    @property
    def best(self) -> Score:
        return best(self.scores)

    def save(self) -> Path:
        """Keep it in the user's cache directory, for runs to come."""
        path = room_for(self.about)
        path.write_text(json.dumps(asdict(self), indent=1))
        return path

    @staticmethod
    def load(about: dict[str, Any]) -> Found | None:
        """The outcome of an earlier search for the same; None if there was none."""
        path = _path(about)
        return Found(about, read_scores(path)) if path.is_file() else None


def room_for(about: dict[str, Any]) -> Path:
    """The file of an outcome, in a folder that can be written to."""
    path = _path(about)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise PlanError(
            f"what a search finds could not be kept: {error}. Let XDG_CACHE_HOME be a folder that "
            f"can be written to."
        ) from error
    return path


def read_scores(path: Path) -> tuple[Score, ...]:
    """The scores of a file that `Found.save` wrote."""
    rows = json.loads(path.read_text())["scores"]
    return tuple(
        Score(**{**row, "point": Point(**row["point"]), "spread": tuple(row["spread"])})
        for row in rows
    )


def _path(about: dict[str, Any]) -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]
    return Path(root) / "hocket" / "search" / f"{digest}.json"
