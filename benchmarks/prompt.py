"""Measure the time from the prompt until help answers, tracing begins, and CartPole is learned.

    python benchmarks/prompt.py                   # seeds 0 to 4, each with a cold cache, then warm

Runs the command in an empty folder with a compilation cache of its own. Prints one JSON line per
figure.
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

TRACE = """
import sys, time
import hocket.core.graph.trace as graph
import hocket.training.loop
def trace(*_, **__):
    print(time.time())
    sys.exit()
hocket.training.loop.trace = trace
sys.argv = ["hocket", "train", "ppo"]
from hocket.cli.main import main
main()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    options = parser.parse_args()
    help_times = [seconds([sys.executable, "-m", "hocket.cli.main", "--help"]) for _ in range(5)]
    tell("hocket --help", statistics.median(help_times), most=round(max(help_times), 3))
    traces = [until_trace() for _ in range(3)]
    tell("until tracing begins", statistics.median(traces), most=round(max(traces), 3))
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as cache:
            for run in ("first", "second"):
                learn(seed, run, cache)


def learn(seed: int, run: str, cache: str) -> None:
    """Train as the README does, from the prompt to the end."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "hocket.cli.main", "train", "ppo", "--seed", str(seed)]
        taken = seconds(command, cwd=folder, XDG_CACHE_HOME=cache)
        summary = json.loads(next(Path(folder).glob("runs/*/summary.json")).read_text())
    parts = ("trace_seconds", "compile_seconds", "run_seconds")
    tell(f"hocket train ppo, seed {seed}, {run} run", taken, return_mean=summary["return_mean"],
         **{name: summary[name] for name in parts})  # fmt: skip


def until_trace() -> float:
    start = time.time()
    done = subprocess.run(
        [sys.executable, "-c", TRACE], capture_output=True, text=True, check=True
    )  # fmt: skip
    return float(done.stdout.split()[-1]) - start


def seconds(command: list[str], cwd: str | None = None, **env: str) -> float:
    start = time.perf_counter()
    subprocess.run(command, cwd=cwd, env=os.environ | env, capture_output=True, check=True)
    return time.perf_counter() - start


def tell(name: str, value: float, **more: object) -> None:
    hardware = f"{os.cpu_count()} x {platform.processor() or platform.machine()}"
    line = {"name": name, "value": round(value, 3), "unit": "s", **more, "hardware": hardware}
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
