"""Algorithms learn with free channels and on the host: long runs, with `pytest -m slow`."""

from __future__ import annotations

import collections

import numpy as np
import pytest

import hocket
from hocket import make
from hocket.algorithms import IMPALA
from hocket.runtime.distributed import SAMPLE_AGE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]

WAYS = {
    "one program": ("CartPole-v1", "anakin"),
    "sebulba on gymnasium": ("gymnasium:CartPole-v1", "sebulba:lag=free"),
    "sebulba on envpool": ("envpool:CartPole-v1", "sebulba:lag=free"),
    "four actors": ("CartPole-v1", "actor_learner:actors=4,lag=free"),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("way", WAYS)
def test_one_impala_everywhere(way: str, seed: int) -> None:
    env, distribute = WAYS[way]
    result = hocket.run(IMPALA(env=make(env)), seed=seed, distribute=distribute)
    assert result.return_mean >= 475, result.return_mean
    assert (SAMPLE_AGE in result.metrics) == ("free" in distribute)


def test_pong() -> None:
    """IMPALA learns Pong from frames with the usual preprocessing. -21 is losing every point."""
    impala = IMPALA(
        env=make("gymnasium:ALE/Pong-v5"), env_steps=10_000_000, num_envs=32, length=20,
        learning_rate=6e-4, entropy_weight=0.01, value_weight=0.5, hidden=(256,),
        activation="relu",
    )  # fmt: skip
    last: collections.deque[float] = collections.deque(maxlen=40)
    means: list[float] = []
    for report in hocket.iterate(impala, distribute="sebulba:lag=free"):
        for count, total in zip(
            report.metrics["episode_count"], report.metrics["episode_return"], strict=True
        ):
            last += [t / c for c, t in zip(count, total, strict=True) if c]
        if len(last) >= 20:
            means.append(float(np.mean(last)))
        if means and means[-1] > -15:
            print(f"{report.env_steps:,} steps, {report.timings.run:.0f} s: {means[-1]:.1f}")  # noqa: T201
            break
    assert means[0] < -19.5, means[0]
    assert means[-1] > -15, means
