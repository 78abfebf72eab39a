"""The search: what it measures, what it chooses, and what it keeps."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from hocket.cluster.search import Found, Point, Score, advised, best, grid, read_scores, search

SURFACES = Path(__file__).parent / "surfaces"
"""The measurements of `benchmarks/slices.py --sections grid`, by device."""
INSTANCES, ENVS = (1, 2, 4, 8), (1024, 4096, 16384)


def machine(latency: float, rate: float, room: int, cut: float = -0.05) -> Callable[[Point], Score]:
    """A device on which an iteration first waits and then computes. `room` instances run at once.

    Eight instances gain the factor `cut` if they may not use all of it; fewer gain less.
    """

    def measure(point: Point) -> Score:
        together = min(point.instances, room)
        seconds = latency / (point.envs * together) + 1 / rate
        crowded = 0.97 if point.instances > room else 1.0
        bounded = 1.0 + cut * point.instances / 8 if point.share != 100 else 1.0
        return Score(point, crowded * bounded / seconds)

    return measure


def test_a_third_of_the_grid_finds_the_best_within_five_percent() -> None:
    points = grid(INSTANCES, ENVS, shares=True)
    assert len(points) == 18
    short = 0
    for seed in range(300):
        draw = random.Random(seed)
        measure = machine(
            10 ** draw.uniform(-4, -1), 10 ** draw.uniform(5, 7), draw.choice([1, 2, 3, 4, 8]),
            cut=draw.uniform(-0.06, 0.16),
        )  # fmt: skip
        scores = search(measure, INSTANCES, ENVS, shares=True)
        assert len(scores) <= len(points) // 3
        assert len({s.point for s in scores}) == len(scores)  # no point is measured twice
        top = max(measure(point).value for point in points)
        short += best(scores).value < 0.95 * top
    assert short <= 3


@pytest.mark.parametrize("path", sorted(SURFACES.glob("*.json")), ids=lambda path: path.stem)
def test_the_search_replayed_on_what_was_measured(path: Path) -> None:
    scores = {score.point: score for score in read_scores(path)}
    instances, envs = (sorted({getattr(p, name) for p in scores}) for name in ("instances", "envs"))
    points = grid(instances, envs, shares=True)
    assert set(points) == set(scores)
    measured = search(scores.__getitem__, instances, envs, shares=True)
    assert len(measured) <= len(points) // 3
    assert best(measured).value >= 0.95 * max(score.value for score in scores.values())


def test_a_saturated_device_is_left_whole() -> None:
    scores = search(machine(1e-9, 1e6, room=1), INSTANCES, ENVS, shares=True)
    assert best(scores).point == Point(1, 16384)
    assert any(s.point.instances == 2 for s in scores)  # two were tried


def test_hardly_faster_is_not_worth_several_instances() -> None:
    scores = [Score(Point(1, 8), 100.0), Score(Point(4, 8), 101.0)]
    assert best(scores).point.instances == 1
    assert best([*scores, Score(Point(2, 8), 110.0)]).point.instances == 2
    doubtful = [Score(Point(1, 8), 100.0, (97.0, 102.0)), Score(Point(2, 8), 104.0, (101.0, 106.0))]
    assert best(doubtful).point.instances == 1
    certain = [Score(Point(1, 8), 100.0, (99.0, 101.0)), Score(Point(2, 8), 104.0, (103.0, 105.0))]
    assert best(certain).point.instances == 2


def test_command_buffers_are_tried_on_the_best_and_on_one_instance() -> None:
    def measure(point: Point) -> Score:
        plain = machine(1e-2, 1e6, room=4)(point)
        return Score(point, plain.value * (1.5 if point.command_buffers else 1.0))

    scores = search(measure, INSTANCES, ENVS, shares=True, buffers=True)
    with_buffers = [s.point for s in scores if s.point.command_buffers]
    assert Point(1, 16384, command_buffers=True) in with_buffers
    assert best(scores).point.command_buffers


def test_what_cannot_run_is_no_choice() -> None:
    def measure(point: Point) -> Score:
        if point.instances > 1:
            return Score(point, 0.0, failed="out of memory")
        return Score(point, 10.0)

    scores = search(measure, INSTANCES, ENVS, shares=True)
    assert best(scores).point.instances == 1
    assert any(s.failed for s in scores)


def test_one_instance_is_measured_with_what_fits() -> None:
    """With 16,384 environments nothing can run, and one instance is as fast as several."""

    def measure(point: Point) -> Score:
        if point.envs == 16384:
            return Score(point, 0.0, failed="out of memory")
        return machine(1e-9, 1e6, room=1)(point)

    for instances in (INSTANCES, INSTANCES[::-1]):
        scores = search(measure, instances, ENVS, shares=True)
        assert len(scores) <= len(grid(INSTANCES, ENVS, shares=True)) // 3
        assert best(scores).point == Point(1, 4096)
        assert sum(bool(score.failed) for score in scores) == 1
    nothing = search(lambda point: Score(point, 0.0, failed="no"), INSTANCES, ENVS)
    assert [score.point.instances for score in nothing] == [1, 1, 1]


def test_what_was_found_is_kept_by_what_it_is_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    scores = tuple(search(machine(1e-2, 1e6, room=4), INSTANCES, ENVS, shares=True))
    outcome = Found({"devices": ["H200"], "jax": "1"}, scores)
    path = outcome.save()
    assert read_scores(path) == scores
    assert Found.load({"devices": ["H200"], "jax": "1"}) == outcome
    assert Found.load({"devices": ["H200"], "jax": "2"}) is None


def test_the_advised_share() -> None:
    assert [advised(k) for k in INSTANCES] == [100, 100, 50, 25]
