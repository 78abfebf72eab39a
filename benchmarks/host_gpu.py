"""Measure host environments beside one GPU: where to act, and what runs at the same time.

    pip install 'hocket[gymnasium,atari]'
    python benchmarks/host_gpu.py                            # one H200 and 16 cores: five minutes
    python benchmarks/host_gpu.py --cases cartpole/64 --seconds 10

PPO under `sebulba` with two actor threads, on Gymnasium's CartPole (Python, in two worker processes
per actor thread) and, if ale-py is installed, on ALE's Pong. Actions are computed on the GPU that
learns, or on the CPU (`acting=cpu`). Parameters are one iteration late, or the newest (`lag=free`).
Steps/s include learning, from the second iteration on. The shares are from a second, recorded run,
in which every program is waited for: `host` is stepping environments, `compute` is acting in an
actor and learning in the learner, `wait` is waiting for others. Prints one JSON line per figure; a
ratio is against acting on the GPU with the same lag. Cases that do not fit into `--budget` are
printed as skipped.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import time
from typing import Any

import jax
from sebulba import OVERLAP, learn, overlap_of

from hocket import make
from hocket.algorithms import PPO

CASES = ("cartpole/64", "cartpole/256", "pong/64")
WAYS = {
    "acting on the GPU": "sebulba:threads=2,lag=1",
    "acting on the CPU": "sebulba:threads=2,lag=1,acting=cpu",
    "acting on the GPU, free": "sebulba:threads=2,lag=free",
    "acting on the CPU, free": "sebulba:threads=2,lag=free,acting=cpu",
}
COMPILE = 15.0
"""Seconds that a new program may take to compile."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--seconds", type=float, default=6.0, help="seconds of each run")
    parser.add_argument("--budget", type=float, default=285.0, help="seconds in all")
    options = parser.parse_args()
    deadline = time.monotonic() + options.budget
    for case in options.cases:
        game, num_envs = case.split("/")
        if game == "pong" and importlib.util.find_spec("ale_py") is None:
            print(json.dumps({"skipped": f"{case}: ale-py is not installed"}), flush=True)
            continue
        measure(game, int(num_envs), options.seconds, deadline)


def measure(game: str, num_envs: int, seconds: float, deadline: float) -> None:
    on_gpu: dict[bool, float] = {}
    for way, distribute in WAYS.items():
        name, free = f"{game}, {num_envs} envs, {way}", distribute.count("lag=free") > 0
        if time.monotonic() + COMPILE + 1.5 * seconds > deadline:
            print(json.dumps({"skipped": f"{name}: no time left"}), flush=True)
            continue
        algorithm = ppo(game, num_envs, free=free)
        training = learn(algorithm, distribute, seconds=seconds)
        rate = training["steps"] / training["seconds"]
        more: dict[str, Any] = {}
        if free in on_gpu:
            against = "acting on the GPU, free" if free else "acting on the GPU"
            more = {"ratio": round(rate / on_gpu[free], 2), "against": against}
        on_gpu.setdefault(free, rate)
        show(name, round(rate), "env steps/s", distribute=distribute, **more)
        recorded = learn(algorithm, distribute, seconds=seconds / 3, record=True)
        rate = round(recorded["steps"] / recorded["seconds"])
        show(f"{name}: {OVERLAP}", **overlap_of(recorded["trace"]), recorded_rate=rate)


def ppo(game: str, num_envs: int, *, free: bool) -> PPO:
    """Make PPO. A free iteration has half of the environments, so it gets half of the batches."""
    if game == "cartpole":
        env = make("gymnasium:CartPole-v1", vectorize="processes", workers=2)
        sizes: dict[str, Any] = {"length": 128, "minibatches": 4 if free else 8, "epochs": 4}
    else:
        env = make("gymnasium:ALE/Pong-v5")
        sizes = {"length": 64, "minibatches": 2 if free else 4, "epochs": 2, "hidden": (512,)}
        sizes |= {"activation": "relu", "learning_rate": 2.5e-4}
    return PPO(env=env, num_envs=num_envs, env_steps=10**9, **sizes)


def show(name: str, value: float, unit: str, **more: Any) -> None:
    hardware = f"{jax.device_count()} x {jax.devices()[0].device_kind}, {os.cpu_count()} cores"
    line = {"name": name, "value": value, "unit": unit, **more, "hardware": hardware}
    print(json.dumps({**line, "jax": jax.__version__}), flush=True)


if __name__ == "__main__":
    main()
