"""Runs of an earlier version can be evaluated, and resume exactly.

`runs_0.1.0.tar.xz` has five of them, written before modules moved into rooms, each with the
checkpoint from the middle of it and, in `whole.npz`, the state that it ended with.
"""

import importlib.util
import json
import tarfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.front import Hocket

import hocket as library
from hocket.system.names import find
from hocket.training.homes import HOMES, with_present_names

RUNS = Path(__file__).parent / "runs_0.1.0.tar.xz"
EXACT = ("fused", "late", "host", "served")

MOVED = (
    "algorithms.a2c:A2C", "algorithms.dqn:DQN", "algorithms.impala:IMPALA", "algorithms.ppo:PPO",
    "algorithms.recurrent_ppo:RecurrentPPO", "envs.acrobot:Acrobot", "envs.atari:AtariEnv",
    "envs.cartpole:CartPole", "envs.catch:Catch", "envs.env:TimeLimit", "envs.envpool:EnvPoolEnv",
    "envs.gymnasium:GymnasiumEnv", "envs.gymnax:GymnaxEnv", "envs.masked:Masked",
    "envs.mountain_car:MountainCar", "envs.pendulum:Pendulum", "envs.quadruped:Quadruped",
    "envs.quadruped_body:Body",
)  # fmt: skip
STAYED = ("nn:MLP", "nn:CNN", "nn:GRU", "nn:Recurrent", "envs.spaces:Box")
"""The names that a configuration of 0.1.0 could contain, with the modules of that time."""


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    with tarfile.open(RUNS) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "runs"


@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize("name", [*EXACT, "free"])
def test_a_run_of_before_goes_on(name: str, runs: Path, hocket: Hocket) -> None:
    assert "after" in hocket.well("eval", name, "--episodes", "2")
    # Only the names in the configuration are changed, to the present ones.
    told = hocket.well("train", "--config", f"runs/{name}", "--name", name, "--resume")
    assert "note: resumed after 640 steps" in told
    if name in EXACT:  # with free channels the order of events is left to chance
        whole = np.load(runs / name / "whole.npz")
        leaves = jax.tree.leaves(library.load(runs / name).state)
        assert len(whole.files) == len(leaves)
        for number, leaf in zip(whole.files, leaves, strict=True):
            is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
            resumed = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
            # Bit for bit with the JAX version that made them; others compile other programs.
            np.testing.assert_allclose(resumed, whole[number], rtol=1e-5, atol=1e-6)
    assert len((runs / name / "metrics.jsonl").read_text().splitlines()) >= 20


def test_a_run_of_today_names_what_users_import(hocket: Hocket) -> None:
    """A configuration names public modules, so that it stays valid when a class moves."""
    flags = ("--num-envs", "4", "--length", "4", "--minibatches", "1", "--env-steps", "16")
    hocket.well("train", "ppo", *flags, "--name", "now", "--quiet")
    algorithm = json.loads(Path("runs/now/config.json").read_text())["algorithm"]
    assert algorithm["class"] == "hocket.algorithms:PPO"
    assert algorithm["env"]["class"] == "hocket.envs:TimeLimit"
    assert algorithm["env"]["env"]["class"] == "hocket.envs:CartPole"


@pytest.mark.parametrize("name", [*MOVED, *STAYED])
def test_what_had_another_home_is_found(name: str) -> None:
    present = with_present_names({"env": [{"class": f"hocket.{name}"}, {"object": "math:pi"}]})
    (described, other) = present["env"]
    assert find(described["class"]).__qualname__ == name.partition(":")[2]
    assert other == {"object": "math:pi"}


def test_the_table_has_a_row_for_whatever_moved() -> None:
    homes = {f"hocket.{name.partition(':')[0]}" for name in MOVED}
    optional = {"hocket.envs.playground"}  # can only be imported if its package is installed
    assert HOMES.keys() == homes | optional
    assert all(importlib.util.find_spec(HOMES[home]) for home in optional)
