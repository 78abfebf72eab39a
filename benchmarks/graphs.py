"""From how many kernels in a row on they are launched as one: milliseconds of an iteration of PPO.

    python benchmarks/graphs.py                     # on a machine with a GPU: two minutes
    python benchmarks/graphs.py --from 5 2 --unroll     # also a step that has loops of its own
    python benchmarks/graphs.py --scale 64              # anywhere, in little

XLA's own choice is five, hocket's is two (`runtime/tune.py`). CartPole with 2,048 environments and
the quadruped with 4,096, each in a process of its own, which also says how long it took to compile.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

ROUNDS = 4
SECONDS = 1.0
"""About how long a timed run is."""
ENVS = {"CartPole-v1": 2048, "Quadruped-v1": 4096}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--from", dest="sizes", type=int, nargs="+", default=[5, 2, 1])
    parser.add_argument("--scale", type=int, default=1, help="so many times fewer environments")
    parser.add_argument("--unroll", action="store_true", help="the quadruped's steps as well")
    parser.add_argument("--here", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        measure(options.here[0], int(options.here[1]), unroll=options.unroll)
        return
    for name, num_envs in ENVS.items():
        first = None
        for size in options.sizes:
            flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_graph_min_graph_size={size}"
            command = [sys.executable, __file__, "--here", name, str(num_envs // options.scale)]
            command += ["--unroll"] * options.unroll
            found = subprocess.run(
                command, env={**os.environ, "XLA_FLAGS": flags.strip()}, check=True, text=True,
                stdout=subprocess.PIPE,
            )  # fmt: skip
            told = json.loads(found.stdout.splitlines()[-1])
            told["name"] = f"{told['name']}, launched as one from {size} on"
            if first:
                told |= {"ratio": round(first["value"] / told["value"], 3),
                         "against": first["name"]}  # fmt: skip
            print(json.dumps(told), flush=True)
            first = first or told


def measure(name: str, num_envs: int, *, unroll: bool) -> None:
    import jax

    from hocket import make
    from hocket.algorithms import PPO
    from hocket.runtime.executor import advance
    from hocket.training.loop import first_key, make_executor, plan

    if unroll:
        module: Any = sys.modules["hocket.envs.unroll"]
        module.has_loops = lambda *args: False
    ppo = PPO(env=make(name), env_steps=1 << 40, anneal=False)
    if name == "Quadruped-v1":
        ppo = replace(ppo, length=16, hidden=(128, 128))
    executor = make_executor(plan(ppo, distribute="anakin:devices=1", num_envs=num_envs), 1 << 20)
    executor.start(first_key(0, None))

    def seconds(iterations: int) -> float:
        start = time.perf_counter()
        advance(executor, iterations)
        return time.perf_counter() - start

    compiled = seconds(2)
    count = max(1, round(SECONDS / (seconds(4) / 4)))
    found = [1e3 * seconds(count) / count for _ in range(ROUNDS)]
    executor.close()
    print(json.dumps({
        "name": f"PPO on {name}, {num_envs} environments" + ", unrolled" * unroll,
        "value": round(statistics.median(found), 2), "unit": "ms an iteration",
        "spread": [round(min(found), 2), round(max(found), 2)], "compiled_s": round(compiled, 1),
        "hardware": jax.devices()[0].device_kind, "jax": jax.__version__,
    }))  # fmt: skip


if __name__ == "__main__":
    main()
