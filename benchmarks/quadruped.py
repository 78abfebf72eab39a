"""Measure the quadruped: rollouts of random actions, and PPO, in JAX and as a kernel.

    python benchmarks/quadruped.py                              # 1,024 to 16,384 environments
    python benchmarks/quadruped.py --envs 256 2048 --only rollout
    python benchmarks/quadruped.py --blocks 8:1 16:1 32:1 32:4  # the kernel's environments:warps

Prints one JSON line per figure: environment steps per second (each has four time steps of the
physics), the seconds of compiling, and how many kernels or fusions the program has.
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
from jax import lax

from hocket import make
from hocket.algorithms import PPO
from hocket.core.program.backend import JAX, backend
from hocket.envs import Quadruped, init_actor, unroll
from hocket.envs.quadruped import backends

LENGTH = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--envs", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=["rollout", "ppo"])
    parser.add_argument("--blocks", nargs="+", default=["8:1"])
    options = parser.parse_args()
    device = jax.devices()[0]
    hardware = f"{os.cpu_count()} x {platform.processor() or platform.machine()}, {device}"
    about = {"hardware": hardware, "jax": jax.__version__, "repeats": options.repeats}
    for num_envs in options.envs:
        for name, blocks in variants(device.platform, options.blocks):
            backends.BLOCK, backends.WARPS = blocks
            for title, program, argument in programs(num_envs):
                if options.only in (None, title):
                    label = name if name == JAX else f"{name} {blocks[0]}:{blocks[1]}"
                    line = {"name": f"quadruped, {num_envs} envs, {title}, {label}"}
                    line.update(measured(program, argument, name, num_envs, options.repeats))
                    print(json.dumps({**line, **about}), flush=True)
    if "pallas" in [name for name, _ in variants(device.platform, options.blocks)]:
        line = {"name": "quadruped, largest difference after one step", "value": difference()}
        print(json.dumps({**line, "unit": "absolute", "against": JAX, **about}), flush=True)


def variants(platform: str, blocks: list[str]) -> list[tuple[str, tuple[int, int]]]:
    """List the backends of this machine, with the kernel in several sizes."""
    default = (backends.BLOCK, backends.WARPS)
    listed = [(JAX, default)]
    if Quadruped.dynamics.runs_on("pallas", platform):
        for block in blocks:
            size, _, warps = block.partition(":")
            listed.append(("pallas", (int(size), int(warps))))
    return listed


def programs(num_envs: int) -> list[tuple[str, Callable[[Any], Any], Any]]:
    """Return titles, programs and first arguments; a program returns its next argument first."""
    env, key = make("Quadruped-v1"), jax.random.key(0)

    def act(obs: Any, memory: Any, keys: Any) -> tuple[Any, Any, None]:
        return jax.vmap(env.action_space.sample)(keys), memory, None

    def rollout(actor: Any) -> Any:
        # The sum uses rewards and observations: XLA would drop them if nothing did.
        actor, taken = unroll(env, act, actor, LENGTH)
        return actor, taken.reward.sum() + taken.obs.sum()

    algorithm = PPO(
        env=env, num_envs=num_envs, length=LENGTH, minibatches=4, learning_rate=7e-4,
        discount=0.97, entropy_weight=0.0, env_steps=10**9,
    )  # fmt: skip
    start = jax.jit(algorithm.init, static_argnums=1)
    return [
        ("rollout", lambda actor: rollout(actor), init_actor(env, key, num_envs)),
        ("ppo", lambda state: algorithm.step(state), start(key, num_envs)),
    ]


def measured(
    program: Callable[[Any], Any], argument: Any, name: str, num_envs: int, repeats: int
) -> dict[str, Any]:
    with backend(name):
        begun = time.perf_counter()
        compiled = jax.jit(program).lower(argument).compile()
        compile_seconds = time.perf_counter() - begun
    count = 1 + int(2.0 / seconds_of(compiled, argument, 1))  # calls in about two seconds
    rates = [
        num_envs * LENGTH * count / seconds_of(compiled, argument, count) for _ in range(repeats)
    ]
    text = compiled.as_text() or ""
    return {
        "value": round(statistics.median(rates)), "least": round(min(rates)),
        "most": round(max(rates)), "unit": "env steps/s",
        "compile_seconds": round(compile_seconds, 1),
        "fusions": text.count(" fusion(") + text.count(" custom-call("),
    }  # fmt: skip


def seconds_of(compiled: Callable[[Any], Any], argument: Any, count: int) -> float:
    jax.block_until_ready(compiled(argument))
    begun = time.perf_counter()
    for _ in range(count):
        argument, _ = compiled(argument)
    jax.block_until_ready(argument)
    return time.perf_counter() - begun


def difference() -> float:
    """Compare the kernel with JAX after one step from 4,096 states of random play."""
    env, keys = Quadruped(), jax.random.split(jax.random.key(0), 4096)

    def step(state: Any, t: Any) -> Any:
        action = jax.vmap(lambda k: env.action_space.sample(jax.random.fold_in(k, t)))(keys)
        return jax.vmap(env.step, in_axes=(0, 0, None))(state, action, keys[0])[0]

    first = jax.jit(jax.vmap(lambda key: env.reset(key)[0]))(keys)
    state = jax.jit(lambda s: lax.fori_loop(0, 20, lambda t, s: step(s, t), s))(first)
    once = jax.jit(lambda s: step(s, 20))
    expected = once(state)
    with backend("pallas"):
        by_kernel = once(state)
    return max(float(abs(a - b).max()) for a, b in zip(by_kernel, expected, strict=True))


if __name__ == "__main__":
    main()
