"""Compare CartPole in C++ (on a CPU) or as a Pallas kernel (on a GPU) with CartPole in JAX.

    python benchmarks/backends.py                  # 64, 2,048 and 16,384 environments
    python benchmarks/backends.py --envs 64 --repeats 9

Two programs of 128 steps each: rollouts as algorithms make them (episodes restart, every
environment has its key), and the dynamics alone. All backends of this machine take turns in one
run. Prints one JSON line per figure; a ratio above 1 means faster than JAX.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hocket import make
from hocket.core.program.backend import JAX, backend
from hocket.envs import CartPole, init_actor, unroll

LENGTH = 128
SECONDS = 0.5
"""The approximate length of one timed run."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--envs", type=int, nargs="+", default=[64, 2048, 16384])
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    device = jax.devices()[0]
    names = [n for n in CartPole.dynamics.backends if CartPole.dynamics.runs_on(n, device.platform)]
    hardware = f"{os.cpu_count()} x {platform.processor() or platform.machine()}, {device}"
    about = {"hardware": hardware, "jax": jax.__version__, "repeats": options.repeats}
    for num_envs in options.envs:
        for title, program, argument in programs(num_envs):
            for line in compare(title, program, argument, names, num_envs, options.repeats):
                print(json.dumps({**line, **about}), flush=True)
        for name in names[1:]:
            line = {
                "name": f"cartpole, {num_envs} envs, {name}, largest difference after one step",
                "value": difference_of_one_step(name, num_envs),
                "unit": "absolute",
                "against": JAX,
            }
            print(json.dumps({**line, **about}), flush=True)


def programs(num_envs: int) -> list[tuple[str, Callable[[Any], Any], Any]]:
    """Return titles, programs and first arguments; a program returns its next argument first."""
    env = make("CartPole-v1")
    actor = init_actor(env, jax.random.key(0), num_envs)
    state = tuple(actor.envs.state.env)

    def rollout(actor: Any) -> Any:
        return unroll(env, balance, actor, LENGTH)

    def dynamics(state: Any) -> Any:
        def one(state: Any, _: None) -> Any:
            state = CartPole().dynamics(*state, balance(jnp.stack(state, 1), None, None)[0])
            return state, state

        return lax.scan(one, state, None, LENGTH)

    return [("rollouts", rollout, actor), ("dynamics alone", dynamics, state)]


def balance(obs: Any, memory: Any, _: Any) -> tuple[Any, Any, None]:
    """A policy that costs nothing: push the cart under the pole."""
    return (obs[:, 2] + obs[:, 3] > 0).astype(jnp.int32), memory, None


def compare(
    title: str, program: Callable[[Any], Any], argument: Any, names: list[str], num_envs: int,
    repeats: int,
) -> list[dict[str, Any]]:  # fmt: skip
    runs = {name: timed(program, argument, name) for name in names}
    count = max(1, round(SECONDS / max(runs[JAX](2) / 2, 1e-6)))
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        runs[name](count)  # warm
    for _ in range(repeats):
        for name in names:
            seconds[name].append(runs[name](count))
    lines = []
    for name in names:
        ratios = [j / s for j, s in zip(seconds[JAX], seconds[name], strict=True)]
        rate = count * LENGTH * num_envs / statistics.median(seconds[name])
        line = {
            "name": f"cartpole, {num_envs} envs, {title}, {name}",
            "value": round(rate),
            "unit": "env steps/s",
        }
        against = {
            "ratio": round(statistics.median(ratios), 3),
            "spread": [round(min(ratios), 3), round(max(ratios), 3)],
            "against": JAX,
        }
        lines.append(line if name == JAX else {**line, **against})
    return lines


def timed(program: Callable[[Any], Any], argument: Any, name: str) -> Callable[[int], float]:
    """Return `run(n)`, the seconds of n calls, where each continues from the one before."""
    with backend(name):
        compiled = jax.jit(lambda x: program(x)).lower(argument).compile()
    held = [argument]

    def run(n: int) -> float:
        start = time.perf_counter()
        for _ in range(n):
            held[0], _ = compiled(held[0])
        jax.block_until_ready(held[0])
        return time.perf_counter() - start

    run(1)
    return run


def difference_of_one_step(name: str, num_envs: int) -> float:
    keys = jax.random.split(jax.random.key(1), 5)
    scales = (1.0, 1.0, 0.1, 1.0, 1.0)
    *state, raw = (s * jax.random.normal(k, (num_envs,)) for s, k in zip(scales, keys, strict=True))
    step = jax.jit(lambda *arrays: CartPole().dynamics(*arrays))
    states = []
    for each in (JAX, name):
        with backend(each):
            states.append(step(*state, (raw > 0).astype(jnp.int32)))
    return max(float(np.abs(a - b).max()) for a, b in zip(*states, strict=True))


if __name__ == "__main__":
    main()
