"""Measure an iteration of PPO by how many kernels in a row are launched as one.

    python benchmarks/graphs.py                     # on a machine with a GPU: two minutes
    python benchmarks/graphs.py --from 5 2 --unroll     # unroll steps that have loops of their own
    python benchmarks/graphs.py --scale 64              # on any machine

`--from 5` launches five or more as one, which is XLA's own choice; hocket's is two
(`runtime/compile/tuning.py`). CartPole has 2,048 environments and the quadruped 4,096. Each is
measured in a process of its own, which also prints how long it took to compile.
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
"""The approximate length of a timed run."""
ENVS = {"CartPole-v1": 2048, "Quadruped-v1": 4096}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--from", dest="sizes", type=int, nargs="+", default=[5, 2, 1])
    parser.add_argument("--scale", type=int, default=1, help="divide the environments by this")
    parser.add_argument("--unroll", action="store_true", help="unroll the quadruped's steps too")
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
            done = subprocess.run(
                command, env={**os.environ, "XLA_FLAGS": flags.strip()}, check=True, text=True,
                stdout=subprocess.PIPE,
            )  # fmt: skip
            line = json.loads(done.stdout.splitlines()[-1])
            line["name"] = f"{line['name']}, launched as one from {size} on"
            if first:
                line |= {"ratio": round(first["value"] / line["value"], 3),
                         "against": first["name"]}  # fmt: skip
            print(json.dumps(line), flush=True)
            first = first or line


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
    times = [1e3 * seconds(count) / count for _ in range(ROUNDS)]
    executor.close()
    print(json.dumps({
        "name": f"PPO on {name}, {num_envs} environments" + ", unrolled" * unroll,
        "value": round(statistics.median(times), 2), "unit": "ms an iteration",
        "spread": [round(min(times), 2), round(max(times), 2)], "compiled_s": round(compiled, 1),
        "hardware": jax.devices()[0].device_kind, "jax": jax.__version__,
    }))  # fmt: skip


if __name__ == "__main__":
    main()
