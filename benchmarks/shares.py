"""Measure the shares of a device's time that go to the environments, to acting and to learning.

    XLA_FLAGS=--xla_gpu_enable_command_buffer= python benchmarks/shares.py 2048

The shares come from a profile of one iteration, by the names of its operations
(`hocket.runtime.observe.profile`). The flag is needed because kernels in a GPU's command buffer do
not say to which operation they belong.
"""

from __future__ import annotations

import sys

import anakin
import jax

import hocket
from hocket.runtime.fused import Fused

NAMES = {"env": "environment", "act": "acting", "learn": "learning"}


def main() -> None:
    num_envs = int(sys.argv[1])
    executor = Fused(hocket.plan(anakin.ppo("CartPole-v1"), num_envs=num_envs), 8)
    executor.start(jax.random.key(0))
    executor.run(8)
    _, _, shares = executor.profile(1)
    for role, share in shares.items():
        name = f"ppo cartpole, {num_envs} envs, share of {NAMES[role]}"
        anakin.show(name=name, value=round(100 * share, 1), unit="% of the operations' time")


if __name__ == "__main__":
    main()
