"""`hocket train` tells a person how it ended when an instance fails, or at Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

import hocket
from tests.faults import all_gone, wait_until, workers
from tests.runtime.launch.programs import start

pytestmark = pytest.mark.usefixtures("nothing_is_left")
SOON = 5.0
"""How long "within seconds" may take on a busy machine."""


# An algorithm of a file; whether its learner stalls or fails is decided by files beside it.
MINE = """
import time
from dataclasses import dataclass
from pathlib import Path
import jax
from jax.experimental import io_callback
from hocket import fragment, make
from hocket.envs import Env
from tests.toys import Toy

@dataclass(frozen=True)
class Mine(Toy):
    env: Env = make("CartPole-v1")  # in name only
    env_steps: int = 400_000

    @fragment(role="env")
    def move(self, x, action):
        return 0.9 * x + 0.1 * action[:, None]

    @fragment(role="learn")
    def update(self, w, xs):
        return io_callback(look, jax.ShapeDtypeStruct(w.shape, w.dtype), 0.9 * w + xs.mean())

    def step(self, state):
        x = self.move(state.x, self.act(state.w, state.x))
        w = self.update(state.w, x)
        return state._replace(x=x, w=w), {"w": w.sum()}

def look(w):
    time.sleep(0.002)
    if Path("stall").exists():
        Path("stalled").touch()
        time.sleep(600)
    if Path("burn").exists():
        raise RuntimeError("the learner is on fire")
    return w
"""


TRAIN = ("-m", "hocket", "train", "mine.py:Mine", "--distribute", "actor_learner:actors=1",
         "--launch", "processes", "--name", "mine")  # fmt: skip


def test_the_command_line_tells_who_failed(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "burn").touch()
    run = start(*TRAIN, folder=tmp_path)
    _, err = run.communicate(timeout=120)
    assert run.returncode == 1, err
    first, second, *rest = err.splitlines()
    assert first == "hocket: the instance `learner/0` failed:"
    assert second == "Traceback (most recent call last):"
    assert "RuntimeError: the learner is on fire" in rest
    assert err.count("cli.py") == 0  # where the run was told of it is of no interest


def test_ctrl_c_once_and_twice(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    records = tmp_path / "runs/mine/metrics.jsonl"

    def begin(*more: str) -> tuple[subprocess.Popen[str], dict[str, int]]:
        size = _size(records)
        run = start(*TRAIN, *more, folder=tmp_path)
        wait_until(lambda: run.poll() is not None or _size(records) > size)
        return run, workers(run.pid)

    run, pids = begin()
    os.killpg(run.pid, signal.SIGINT)
    out, err = run.communicate(timeout=60)
    assert run.returncode == 130, err
    assert len(pids) == 2 and all_gone(pids)
    assert "interrupted; --resume continues it" in out and err == ""
    steps = json.loads((tmp_path / "runs/mine/summary.json").read_text())["env_steps"]
    assert 0 < steps < 400_000

    run, pids = begin("--resume")
    (tmp_path / "stall").touch()
    wait_until((tmp_path / "stalled").exists)
    os.killpg(run.pid, signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        run.communicate(timeout=0.5)  # it lets the iteration end, which takes ten minutes
    os.killpg(run.pid, signal.SIGINT)
    out, err = run.communicate(timeout=SOON)
    assert run.returncode == 130, err
    assert len(pids) == 2 and all_gone(pids)
    assert f"resumed after {steps:,} steps" in out
    assert hocket.load(tmp_path / "runs/mine").iteration * 8 >= steps


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
