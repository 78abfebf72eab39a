"""Train the algorithms with their defaults, eight seeds each, and draw the curves of the docs.

    python benchmarks/learning.py --pictures docs/pictures      # about ten minutes on two cores

Runs the commands of the algorithms' pages in the folder `runs`, except for runs that are already
there. Prints one JSON line per run: the mean return of its last 100 episodes, over the seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

RUNS = {
    "ppo-CartPole-v1": "ppo --env CartPole-v1",
    "ppo-Acrobot-v1": "ppo --env Acrobot-v1",
    "ppo-Catch": "ppo --env Catch",
    "ppo-Pendulum-v1": "ppo --env Pendulum-v1",
    "recurrent": "recurrent-ppo --env PositionOnlyCartPole",
    "memoryless": "ppo --env PositionOnlyCartPole --env-steps 1000000",
    "impala-CartPole-v1": "impala --env CartPole-v1",
    "impala-Catch": "impala --env Catch",
    "impala-memory": "impala --env PositionOnlyCartPole --memory 64",
    "a2c-CartPole-v1": "a2c --env CartPole-v1",
    "a2c-Catch": "a2c --env Catch",
    "dqn-CartPole-v1": "dqn --env CartPole-v1",
    "dqn-Catch": "dqn --env Catch",
}
PICTURES = {
    "ppo.png": ["ppo-CartPole-v1", "ppo-Acrobot-v1", "ppo-Catch", "ppo-Pendulum-v1"],
    "recurrent-ppo.png": ["recurrent", "memoryless"],
    "impala.png": ["impala-CartPole-v1", "impala-Catch", "impala-memory"],
    "a2c.png": ["a2c-CartPole-v1", "a2c-Catch"],
    "dqn.png": ["dqn-CartPole-v1", "dqn-Catch"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pictures", type=Path, help="draw the curves into this folder")
    options = parser.parse_args()
    for name, words in RUNS.items():
        summary = Path("runs", name, "summary.json")
        if not summary.exists():
            hocket("train", *words.split(), "--seeds", "8", "--name", name, "--quiet")
        tell(json.loads(summary.read_text()))
    for picture, names in PICTURES.items():
        if options.pictures:
            hocket("plot", *names, "--out", str(options.pictures / picture))
    if options.pictures:
        film = str(options.pictures / "cartpole.gif")
        hocket("record", "ppo-CartPole-v1", "--max-steps", "150", "--fps", "50", "--out", film)


def hocket(*arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "hocket.cli.main", *arguments], check=True, stdout=sys.stderr
    )  # fmt: skip


def tell(summary: dict) -> None:
    each = [agent["return_mean"] for agent in summary["each"]]
    hardware = f"{os.cpu_count()} x {platform.processor() or platform.machine()}"
    line = {
        "name": summary["title"], "value": round(summary["return_mean"], 2), "unit": "return",
        "least": round(min(each), 2), "most": round(max(each), 2), "seeds": len(each),
        "env_steps": summary["env_steps"], "run_seconds": round(summary["run_seconds"], 1),
        "env_steps_per_second": summary["env_steps_per_second"], "hardware": hardware,
    }  # fmt: skip
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
