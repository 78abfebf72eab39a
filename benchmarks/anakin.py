"""Measure how fast one device trains PPO in one program, at the sizes measured for PureJaxRL.

    python benchmarks/anakin.py                            # one H200: about three minutes
    python benchmarks/anakin.py --envs 64                  # on a CPU, fewer environments

128-step rollouts, 4 epochs, 4 minibatches, two 2 x 64 tanh networks, no observation normalization.
Prints one JSON line per figure; a ratio above 1 means that hocket is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax

import hocket
from hocket import make
from hocket.algorithms import PPO
from hocket.cluster import GpuActivity

PUREJAXRL = {
    ("CartPole-v1", 2048, None): 22.9e6,
    ("CartPole-v1", 16384, None): 66.7e6,
    ("CartPole-v1", 4, 2048): 41.0e6,
    ("Catch", 4096, None): 21.4e6,
}
"""Steps/s of PureJaxRL's PPO on one H200, by environment, their number, and seeds at once."""
SWEEP = [8192, 32768, 65536, 131072]
ENVS_OF_A_SEED = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--envs", type=int, nargs="+", help="only these numbers of environments")
    parser.add_argument("--seeds", type=int, nargs="+", help="only these numbers of vmapped seeds")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    everything = options.envs is None and options.seeds is None
    for num_envs in [2048, 16384] if everything else options.envs or []:
        measure("CartPole-v1", num_envs, options.repeats, count=True)
    for seeds in [2048] if everything else options.seeds or []:
        measure("CartPole-v1", ENVS_OF_A_SEED, options.repeats, seeds=seeds)
    if everything:
        measure("Catch", 4096, options.repeats)
        for num_envs in (2048, 16384):
            show_shares(num_envs)
        rates = {n: measure("CartPole-v1", n, options.repeats) for n in SWEEP}
        knee = max(rates, key=lambda n: rates[n])
        show(name=f"ppo cartpole at the knee, {knee} envs", value=rates[knee], unit="env steps/s")


def ppo(env: str) -> PPO:
    return PPO(
        env=make(env), normalize_obs=False, length=128, epochs=4, minibatches=4,
        learning_rate=2.5e-4, env_steps=10**12,
    )  # fmt: skip


def measure(
    env: str, num_envs: int, repeats: int, *, seeds: int | None = None, count: bool = False
) -> int:
    """Measure environment steps/s, from reports a quarter of a second apart after the first few."""
    name = f"ppo {env.lower().removesuffix('-v1')}, {num_envs} envs"
    name += f", {seeds} seeds at once" if seeds else ""
    rates: list[float] = []
    reports = hocket.iterate(ppo(env), num_envs=num_envs, seeds=seeds)
    before = next(reports)
    for report in reports:
        steps = (report.env_steps - before.env_steps) * (seeds or 1)
        rates.append(steps / (report.timings.run - before.timings.run))
        before = report
        if len(rates) == 5 + repeats:  # blocks grow until they take their quarter of a second
            break
    rate = show_rate(name, rates[-repeats:], PUREJAXRL.get((env, num_envs, seeds)))
    if count:
        show_counters(name, reports)
    return rate


def show_rate(name: str, rates: list[float], against: float | None) -> int:
    rate = statistics.median(rates)
    line: dict[str, Any] = {"name": name, "value": round(rate), "unit": "env steps/s"}
    if against:
        line.update(ratio=round(rate / against, 2), against=f"PureJaxRL, {against / 1e6} M")
    show(**line, spread=[round(min(rates)), round(max(rates))], repeats=len(rates))
    return round(rate)


def show_counters(name: str, reports: Any, seconds: float = 3.0) -> None:
    """Print the hardware's counters during training."""
    with GpuActivity() as activity:
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            next(reports)
    if activity.why:
        print(json.dumps({"skipped": f"{name}, counters: {activity.why}"}), flush=True)
    for counter, value in activity.report().items():
        show(name=f"{name}, {counter}", value=round(value, 1), unit="% of peak (NVML GPM)")


def show_shares(num_envs: int) -> None:
    """Run `shares.py` in a process of its own, because the flag that it needs is per process."""
    flags = {
        "XLA_FLAGS": "--xla_gpu_enable_command_buffer=",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    script = Path(__file__).with_name("shares.py")
    subprocess.run([sys.executable, script, str(num_envs)], env={**os.environ, **flags}, check=True)


def show(**line: Any) -> None:
    hardware = f"{jax.device_count()} x {jax.devices()[0].device_kind}"
    print(json.dumps({**line, "hardware": hardware, "jax": jax.__version__}), flush=True)


if __name__ == "__main__":
    main()
