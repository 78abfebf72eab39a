"""Compare eight seeds in one program with eight runs one after another, from prompt to end.

    python benchmarks/seeds.py --repeats 3
    python benchmarks/seeds.py --algorithm dqn --seeds 4

Both run all of `hocket train`, with everything compiled before, and take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithm", default="ppo")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    together = [["--seeds", str(options.seeds)]]
    apart = [["--seed", str(i)] for i in range(options.seeds)]
    train(options.algorithm, together)  # compiles
    train(options.algorithm, apart[:1])
    pairs = [
        (train(options.algorithm, together), train(options.algorithm, apart))
        for _ in range(options.repeats)
    ]
    ratios = [alone / one for one, alone in pairs]
    name = f"{options.algorithm} on CartPole-v1, {options.seeds} seeds"
    tell(f"{name}, one after another", statistics.median(alone for _, alone in pairs))
    tell(f"{name}, in one program", statistics.median(one for one, _ in pairs),
         ratio=round(statistics.median(ratios), 2), against="one after another",
         spread=[round(min(ratios), 2), round(max(ratios), 2)])  # fmt: skip


def train(algorithm: str, runs: list[list[str]]) -> float:
    """Measure the seconds of several runs, one after another."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        for flags in runs:
            command = ["-m", "hocket.cli.main", "train", algorithm, "--quiet", *flags]
            subprocess.run([sys.executable, *command], cwd=folder, check=True)
        taken = time.perf_counter() - start
        records = list(Path(folder).rglob("metrics.jsonl"))
        agents = int(runs[0][1]) if runs[0][0] == "--seeds" else len(runs)
        assert len(records) == agents, f"{len(records)} records of {agents} agents"
    return taken


def tell(name: str, value: float, **more: object) -> None:
    hardware = f"{os.cpu_count()} x {platform.processor() or platform.machine()}"
    line = {"name": name, "value": round(value, 1), "unit": "s", **more, "hardware": hardware}
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
