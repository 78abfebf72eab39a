"""Measure what the abstraction costs: hocket's PPO and a PPO written by hand, taking turns.

    python benchmarks/fused.py                     # 16, 64, 256 and 2,048 environments
    python benchmarks/fused.py --envs 64 256 --repeats 9

CartPole with PureJaxRL's sizes: 4 epochs, 4 minibatches, 2 x 64 tanh networks, 128-step rollouts.
Prints one JSON line per figure; a ratio above 1 means that hocket is faster.
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
import numpy as np
import plain_ppo

from hocket import make
from hocket.algorithms import PPO
from hocket.core.graph.trace import init_state
from hocket.core.program.tuning import Tuning, tuned
from hocket.runtime.compile.tuning import tuning_for
from hocket.runtime.fused import block_program
from hocket.testing import difference

SECONDS = 1.0
"""The approximate length of one timed run."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--envs", type=int, nargs="+", default=[16, 64, 256, 2048])
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    hardware = (
        f"{os.cpu_count()} x {platform.processor() or platform.machine()}, {jax.devices()[0]}"
    )
    for num_envs in options.envs:
        for line in compare(num_envs, options.repeats):
            print(json.dumps({**line, "hardware": hardware, "jax": jax.__version__}), flush=True)


def compare(num_envs: int, repeats: int) -> list[dict[str, Any]]:
    algorithm = PPO(
        env=make("CartPole-v1"), normalize_obs=False, length=plain_ppo.LENGTH,
        epochs=plain_ppo.EPOCHS, minibatches=plain_ppo.MINIBATCHES,
        learning_rate=plain_ppo.RATE, env_steps=plain_ppo.BUDGET,
    )  # fmt: skip
    state = jax.jit(lambda key: init_state(algorithm, key, num_envs))(jax.random.key(0))
    check_same_numbers(algorithm, state)
    rollout = num_envs * plain_ppo.LENGTH
    runs = {
        "hocket": block(algorithm.step, state, tuning_for(jax.local_devices()[:1])),
        "plain": block(plain_ppo.step, as_plain(state), Tuning()),
    }
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    iterations = max(1, round(SECONDS / max(runs["plain"](1), 1e-6)))
    for name in runs:
        runs[name](iterations)  # warm
    for _ in range(repeats):
        for name, run in runs.items():
            seconds[name].append(run(iterations))
    rate = {name: iterations * rollout / statistics.median(s) for name, s in seconds.items()}
    ratios = [p / h for p, h in zip(seconds["plain"], seconds["hocket"], strict=True)]
    common = {"unit": "env steps/s", "repeats": repeats}
    return [
        {
            "name": f"ppo cartpole, {num_envs} envs, by hand",
            "value": round(rate["plain"]),
            **common,
        },
        {
            "name": f"ppo cartpole, {num_envs} envs",
            "value": round(rate["hocket"]),
            "ratio": round(statistics.median(ratios), 3),
            "spread": [round(min(ratios), 3), round(max(ratios), 3)],
            "against": "by hand",
            **common,
        },
    ]


def block(step: Callable[[Any], Any], state: Any, choice: Tuning) -> Callable[[int], float]:
    """Return `run(n)`, the seconds of n iterations in one compiled program."""
    metrics = jax.eval_shape(step, state)[1]
    program = jax.jit(block_program(step, metrics, 1024), donate_argnums=0)
    held = [jax.tree.map(lambda x: x.copy(), state)]

    def run(n: int) -> float:
        start = time.perf_counter()
        held[0], rows = program(held[0], np.int32(n))
        jax.block_until_ready(rows)
        return time.perf_counter() - start

    with tuned(choice):  # the choices of `hocket.run` for this device; none for the other program
        run(1)
    return run


def as_plain(state: Any) -> plain_ppo.State:
    """Return hocket's state in the containers of the hand-written program."""
    envs, learner = state.actor.envs, state.learner
    inner, episode = envs.state, envs.episode

    def layers(params: Any) -> list[tuple[Any, Any]]:
        dense = params["params"]["layers_1"]
        return [(dense[name]["kernel"], dense[name]["bias"]) for name in sorted(dense)]

    params = {
        "policy": layers(learner.params.policy),
        "value": layers(learner.params.value),
    }
    return plain_ppo.State(
        plain_ppo.Envs(
            tuple(inner.env), inner.steps, envs.key, episode.ret, episode.length,
            episode.ended_return, episode.ended_length, episode.ended,
        ),
        state.actor.obs, state.actor.key, params, plain_ppo.optimizer.init(params),
        plain_ppo.Returns(*learner.returns), learner.progress, learner.pace, learner.key,
    )  # fmt: skip


def check_same_numbers(algorithm: PPO, state: Any) -> None:
    """Check that both programs do the same work."""
    ours, _ = jax.jit(algorithm.step)(state)
    theirs, _ = jax.jit(plain_ppo.step)(as_plain(state))
    expected = as_plain(ours)
    for name in ("envs", "params", "returns"):
        largest = difference(getattr(expected, name), getattr(theirs, name))
        assert largest < 1e-3, f"{name} differ by {largest} after one iteration"


if __name__ == "__main__":
    main()
