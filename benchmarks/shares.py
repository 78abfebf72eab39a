"""Which share of a GPU's time goes to the environments, to acting and to learning.

    XLA_FLAGS=--xla_gpu_enable_command_buffer= python benchmarks/shares.py 2048

From a profile of a few iterations: each kernel carries the name of its instruction in the compiled
program, which says what that came from. Kernels in a command buffer carry none, hence the flag.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import anakin
import jax
import numpy as np

import hocket
from hocket.runtime.fused import Fused

ITERATIONS = 3
NAMES = {"env": "environment", "act": "acting", "learn": "learning", "rest": "the rest"}


def main() -> None:
    num_envs = int(sys.argv[1])
    executor = Fused(hocket.plan(anakin.ppo("CartPole-v1"), num_envs=num_envs), ITERATIONS)
    executor.start(jax.random.key(0))
    program = executor.lower().compile()
    state, _ = program(executor.state(), np.int32(ITERATIONS))
    with tempfile.TemporaryDirectory() as folder:
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        with jax.profiler.trace(folder, profiler_options=options):
            jax.block_until_ready(program(state, np.int32(ITERATIONS)))
        spent = by_role(next(Path(folder).rglob("*.xplane.pb")), roles(program.as_text()))
    total = sum(spent.values())
    for role, nanoseconds in spent.most_common():
        anakin.show(
            name=f"ppo cartpole, {num_envs} envs, share of {NAMES[role]}",
            value=round(100 * nanoseconds / total, 1), unit="% of kernels' time",
            milliseconds=round(nanoseconds / ITERATIONS / 1e6, 3),
        )  # fmt: skip


def by_role(profile: Path, role_of: dict[str, str]) -> Counter[str]:
    """Nanoseconds in kernels by the role of the fragment that they belong to."""
    spent: Counter[str] = Counter()
    data: Any = jax.profiler.ProfileData.from_file(str(profile))
    for plane in data.planes:
        for line in plane.lines if plane.name.startswith("/device:GPU") else ():
            for event in line.events if "Compute" in line.name else ():
                named = [value for key, value in event.stats if key == "hlo_op"]
                spent[role_of.get(str(named[0]), "rest") if named else "rest"] += event.duration_ns
    return spent


def roles(hlo: str) -> dict[str, str]:
    """The role of each instruction: that of most of what was fused into it."""
    inside: dict[str, Counter[str]] = {}
    calls: dict[str, str] = {}
    own: dict[str, str] = {}
    computation = ""
    for line in hlo.splitlines():
        if line.endswith("{") and (head := re.match(r"(?:ENTRY )?%?([\w.\-]+) ", line)):
            computation = head.group(1)
        if not (instruction := re.match(r"\s+(?:ROOT )?%?([\w.\-]+) = ", line)):
            continue
        name = instruction.group(1)
        if role := re.search(r'op_name="[^"]*hocket\.(env|act|learn)\.', line):
            inside.setdefault(computation, Counter())[role.group(1)] += 1
            own[name] = role.group(1)
        if called := re.search(r"calls=%?([\w.\-]+)", line):
            calls[name] = called.group(1)
    fused = {
        name: inside[body].most_common(1)[0][0] for name, body in calls.items() if body in inside
    }
    return {**own, **fused}


if __name__ == "__main__":
    main()
