"""The adapter for MuJoCo Playground: ends of episodes, options, a run, and the missing package.

Playground installs half a gigabyte, so the extra `test` does not include it. All of these tests run
after `pip install 'hocket[playground]'`.
"""

import importlib
import pickle
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hocket
from hocket.algorithms import PPO
from hocket.envs import Box, TimeLimit, auto_reset, check_env, make
from hocket.envs.registry import name_of

KEY = jax.random.key(0)


@pytest.fixture
def adapter() -> Any:
    pytest.importorskip("mujoco_playground", reason="needs: pip install 'hocket[playground]'")
    return importlib.import_module("hocket.envs.adapters.playground")


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mujoco_playground", None)
    monkeypatch.delitem(sys.modules, "hocket.envs.adapters.playground", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'hocket\[playground\]'"):
        make("playground:CartpoleBalance")


def test_it_keeps_the_contract(adapter: Any) -> None:
    env = make("playground:CartpoleBalance")
    assert isinstance(env, TimeLimit) and env.max_steps == 1000
    assert env.action_space == Box(-1.0, 1.0, shape=(1,))
    assert env.observation_space == Box(-np.inf, np.inf, shape=(5,))
    assert name_of(env) == "playground:CartpoleBalance"
    check_env(make("playground:CartpoleBalance", max_steps=30))


def test_steps_are_playgrounds_and_a_limit_truncates(adapter: Any) -> None:
    env = make("playground:CartpoleBalance", max_steps=10)
    theirs = adapter.registry.load("CartpoleBalance", config_overrides={"impl": "jax"})
    with jax.numpy_rank_promotion("allow"):
        expected = jax.jit(theirs.reset)(KEY)
    state, obs = jax.jit(env.reset)(KEY)
    np.testing.assert_array_equal(obs, expected.obs)
    step, step_theirs = jax.jit(lambda s, a, k: auto_reset(env, s, a, k)), jax.jit(theirs.step)
    action, result = jnp.full((1,), 0.5), None
    for t in range(1, 11):
        with jax.numpy_rank_promotion("allow"):
            expected = step_theirs(expected, action)
        state, obs, result = step(state, action, jax.random.key(t))
        np.testing.assert_allclose(result.obs, expected.obs, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(result.reward, expected.reward, rtol=1e-5)
        assert (bool(result.terminated), bool(result.truncated)) == (False, t == 10)
    # The final observation is kept, and the observation to act on is of another episode.
    assert result and abs(obs - result.obs).max() > 1e-3 and state.steps == 0


def test_what_is_not_finite_terminates(adapter: Any) -> None:
    env = adapter.PlaygroundEnv("CartpoleBalance")
    state, _ = jax.jit(env.reset)(KEY)
    broken = state.replace(data=state.data.replace(qpos=state.data.qpos * jnp.nan))
    result = jax.jit(env.step)(broken, jnp.zeros(1), KEY)[1]
    assert result.terminated and not result.truncated
    assert jnp.isfinite(result.obs).all() and jnp.isfinite(result.reward)


def test_options_are_those_of_its_config(adapter: Any) -> None:
    assert make("playground:CartpoleBalance", ctrl_dt=0.02).env.env.dt == 0.02
    assert make("playground:CartpoleBalance", max_steps=None).env.dt == 0.01
    with pytest.raises(ValueError, match=r"`CartpoleBalanc`.*mean `CartpoleBalance`\?"):
        make("playground:CartpoleBalanc")
    with pytest.raises(ValueError, match=r"`ctrl_dtt`.*mean `ctrl_dt`\?.*max_steps"):
        make("playground:CartpoleBalance", ctrl_dtt=0.02)
    with pytest.raises(ValueError, match=r"`ctrl_dt`.*of type float \(such as 0.01"):
        make("playground:CartpoleBalance", ctrl_dt="slow")


def test_it_travels(adapter: Any) -> None:
    env = make("playground:CartpoleBalance", ctrl_dt=0.02)
    assert pickle.loads(pickle.dumps(env)) == env


def test_models_that_cannot_be_fetched(adapter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: Any) -> Any:
        raise subprocess.CalledProcessError(128, ["git", "clone"])

    monkeypatch.setattr(adapter.registry, "load", load)
    with pytest.raises(RuntimeError, match=r"mujoco_menagerie.*put a copy into"):
        make("playground:Go1JoystickFlatTerrain")


def test_ppo_trains_on_it(adapter: Any) -> None:
    algorithm = PPO(
        env=make("playground:CartpoleBalance", max_steps=16), length=16, minibatches=2, epochs=1,
        hidden=(16,), num_envs=4, env_steps=128,
    )  # fmt: skip
    result = hocket.run(algorithm)
    assert result.metrics["episode_count"].sum() == 8  # each of four, cut twice
    assert 0 < result.return_mean <= 16


def test_robots_can_be_replicated(adapter: Any) -> None:
    """MJX has loops whose length depends on the environment, and solves a system for each."""
    algorithm = PPO(
        env=make("playground:CheetahRun"), length=2, minibatches=1, epochs=1, hidden=(8,),
        num_envs=8, env_steps=16,
    )  # fmt: skip
    made = hocket.plan(algorithm, distribute="sliced:slices=2,devices=1")
    assert made.places[0].replicas == 2
