"""Check that actors go on while their learner stands still, and that they stop in time.

    python benchmarks/asynchrony.py

IMPALA with 4 actors, as threads and as processes. Their environments take 10 ms a step, so nobody
waits for a core. Measures the rate of samples while the learner learns, and during 2 s in which it
does not; then how many samples there are once `max_age` has stopped all actors.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from hocket import trace
from hocket.algorithms import IMPALA
from hocket.cluster import Cluster
from hocket.envs import Box, Discrete, HostStep, Space
from hocket.runtime.distributed import Split
from hocket.runtime.executor import advance
from hocket.runtime.launch import launch_named
from hocket.strategies import resolve

ACTORS, LENGTH, STEP_SECONDS, STALL = 4, 10, 0.01, 2.0


@dataclass(frozen=True)
class Slow:
    """Environments that do nothing, slowly."""

    name: str = "slow"

    @property
    def observation_space(self) -> Space:
        return Box(-1.0, 1.0, shape=(4,))

    @property
    def action_space(self) -> Space:
        return Discrete(2)

    def open(self, num_envs: int) -> LiveSlow:
        return LiveSlow(num_envs)


class LiveSlow:
    def __init__(self, num: int) -> None:
        self.obs, self.none = np.zeros((num, 4), np.float32), np.zeros(num, bool)

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        return self.obs

    def send(self, actions: Any) -> None:
        self.due = time.perf_counter() + STEP_SECONDS

    def recv(self) -> HostStep:
        time.sleep(max(0.0, self.due - time.perf_counter()))
        return HostStep(
            self.obs, np.ones(len(self.none), np.float32), self.none, self.none, self.obs
        )

    def snapshot(self) -> None:
        return None

    def restore(self, snapshots: list[bytes]) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass


def measure(launch: str, max_age: int) -> None:
    impala = IMPALA(env=Slow(), num_envs=2 * ACTORS, length=LENGTH)
    strategy = resolve(f"actor_learner:actors={ACTORS},lag=free,max_age={max_age}")
    plan = replace(
        strategy(trace(impala, 2 * ACTORS), Cluster.local()), launch=launch_named(launch)
    )
    executor: Any = Split(plan)
    executor.start(jax.random.key(0))
    advance(executor, 60)  # by now all instances have compiled
    ledger = executor.crew.ledger.numbers

    def rate(work: Any) -> float:
        made, start = int(ledger["made"].sum()), time.perf_counter()
        work()
        return (int(ledger["made"].sum()) - made) / (time.perf_counter() - start)

    ages: list[np.ndarray] = []

    def learn() -> None:
        end = time.perf_counter() + STALL
        while time.perf_counter() < end:
            ages.append(advance(executor, 8)["sample_age"])

    learning = rate(learn)
    stalled = rate(lambda: time.sleep(STALL))
    before = -1
    while before != (before := int(ledger["made"].sum())):
        time.sleep(0.5)
    waiting = int((ledger["made"] - ledger["taken"]).sum())
    ages.append(advance(executor, waiting)["sample_age"])
    name = f"asynchrony_{launch}"
    oldest = int(np.concatenate(ages).max())
    say(f"{name}_while_learning", learning, "samples/s")
    say(f"{name}_while_stalled", stalled, "samples/s", stalled / learning, "while learning")
    say(f"{name}_samples_when_stopped", waiting, f"samples of max_age={max_age}")
    say(f"{name}_oldest", oldest, f"iterations of max_age={max_age}", oldest / max_age, "max_age")
    executor.close()


def say(name: str, value: float, unit: str, ratio: float | None = None, against: str = "") -> None:
    row = {"name": name, "value": round(value, 2), "unit": unit}
    more = {} if ratio is None else {"ratio": round(ratio, 3), "against": against}
    print(json.dumps({**row, **more}), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--max-age", type=int, default=320)
    arguments = parser.parse_args()
    for launch in ("threads", "processes"):
        measure(launch, arguments.max_age)
