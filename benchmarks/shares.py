"""Which share of a GPU's time goes to the environments, to acting and to learning.

    XLA_FLAGS=--xla_gpu_enable_command_buffer= python benchmarks/shares.py 2048

From a profile of a few iterations: each kernel carries the name of what it was compiled from, and
that holds the fragment's. Kernels in a command buffer carry none, hence the flag.
"""

from __future__ import annotations

import collections
import json
import re
import sys
import tempfile
from pathlib import Path

import anakin
import jax

import hocket
from hocket.runtime.fused import Fused

ITERATIONS = 3
NAMES = {"env": "environment", "act": "acting", "learn": "learning"}


def main() -> None:
    num_envs = int(sys.argv[1])
    executor = Fused(hocket.plan(anakin.ppo("CartPole-v1"), num_envs=num_envs), ITERATIONS)
    executor.start(jax.random.key(0))
    executor.run(ITERATIONS)
    with tempfile.TemporaryDirectory() as folder:
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        with jax.profiler.trace(folder, profiler_options=options):
            executor.run(ITERATIONS)
        spent = by_role(next(Path(folder).rglob("*.xplane.pb")))
    total = sum(spent.values())
    for role, nanoseconds in spent.most_common():
        anakin.show(
            name=f"ppo cartpole, {num_envs} envs, share of {NAMES.get(role, 'the rest')}",
            value=round(100 * nanoseconds / total, 1), unit="% of kernels' time",
            milliseconds=round(nanoseconds / ITERATIONS / 1e6, 3),
        )  # fmt: skip
    if not total:
        print(json.dumps({"skipped": "shares: the profile names no GPU kernels"}))


def by_role(profile: Path) -> collections.Counter[str]:
    """Nanoseconds in kernels by the role of the fragment that they belong to."""
    spent: collections.Counter[str] = collections.Counter()
    for plane in jax.profiler.ProfileData.from_file(str(profile)).planes:
        for line in plane.lines if plane.name.startswith("/device:GPU") else ():
            for event in line.events if "Compute" in line.name else ():
                stats: dict[str, object] = dict(event.stats)
                found = re.search(r"hocket\.(\w+)\.", str(stats.get("name", "")))
                spent[found.group(1) if found else "rest"] += int(event.duration_ns)
    return spent


if __name__ == "__main__":
    main()
