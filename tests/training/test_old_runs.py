"""Runs that an earlier version has left behind: they are evaluated, and go on exactly.

`runs_0.1.0.tar.xz` has five of them, written before modules moved into rooms, each with the
checkpoint from the middle of it and, in `whole.npz`, the state that it ended with.
"""

import json
import tarfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.front import Hocket

import hocket as library

RUNS = Path(__file__).parent / "runs_0.1.0.tar.xz"
EXACT = ("fused", "late", "host", "served")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    with tarfile.open(RUNS) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "runs"


@pytest.mark.parametrize("name", [*EXACT, "free"])
def test_a_run_of_before_goes_on(name: str, runs: Path, hocket: Hocket) -> None:
    assert "after" in hocket.well("eval", name, "--episodes", "2")
    # The configuration is what it was; only the names in it are today's.
    told = hocket.well("train", "--config", f"runs/{name}", "--name", name, "--resume")
    assert "note: resumed after 640 steps" in told
    if name in EXACT:  # where nobody waits, chance decides who is first
        whole = np.load(runs / name / "whole.npz")
        leaves = jax.tree.leaves(library.load(runs / name).state)
        assert len(whole.files) == len(leaves)
        for number, leaf in zip(whole.files, leaves, strict=True):
            is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
            found = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
            # Bit for bit with the jax that made them; another one compiles other programs.
            np.testing.assert_allclose(found, whole[number], rtol=1e-5, atol=1e-6)
    assert len((runs / name / "metrics.jsonl").read_text().splitlines()) >= 20


def test_a_run_of_today_names_what_users_import(hocket: Hocket) -> None:
    """So that its configuration stays true when a module moves."""
    flags = ("--num-envs", "4", "--length", "4", "--minibatches", "1", "--env-steps", "16")
    hocket.well("train", "ppo", *flags, "--name", "now", "--quiet")
    algorithm = json.loads(Path("runs/now/config.json").read_text())["algorithm"]
    assert algorithm["class"] == "hocket.algorithms:PPO"
    assert algorithm["env"]["class"] == "hocket.envs:TimeLimit"
    assert algorithm["env"]["env"]["class"] == "hocket.envs:CartPole"
