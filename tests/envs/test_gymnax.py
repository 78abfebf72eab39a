"""The gymnax adapter: final observations, time limits, dtypes, names, and the missing package."""

import importlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hocket.envs import Box, Discrete, auto_reset, check_env, make, names

gymnax = pytest.importorskip("gymnax")

KEY = jax.random.key(0)


@pytest.mark.parametrize("name", ["Breakout-MinAtar", "FourRooms-misc", "FrozenLake-misc"])
def test_environments_keep_the_contract(name: str) -> None:
    assert f"gymnax:{name}" in names()
    check_env(make(f"gymnax:{name}"))


def test_spaces_are_ours() -> None:
    env = make("gymnax:CartPole-v1")
    assert env.action_space == Discrete(2)
    assert env.observation_space == Box(
        (-np.float32(4.8), -np.inf, -np.float32(0.41887903), -np.inf),
        (np.float32(4.8), np.inf, np.float32(0.41887903), np.inf),
        shape=(4,),
    )
    assert jax.jit(lambda: env.observation_space.zeros())().shape == (4,)


def test_steps_are_those_of_gymnax_with_the_final_observation() -> None:
    env = make("gymnax:CartPole-v1", max_steps_in_episode=12)
    theirs, params = gymnax.make("CartPole-v1")
    params = params.replace(max_steps_in_episode=12)
    state, _ = env.reset(KEY)
    ends = []
    for t in range(30):
        action = jnp.int32(t % 2 if t < 12 else 0)
        _, _, reward, terminated, truncated, info = theirs.step(KEY, state, action, params)
        state, obs, step = auto_reset(env, state, action, jax.random.fold_in(KEY, t))
        np.testing.assert_allclose(step.obs, info["final_observation"], rtol=1e-6)
        assert (step.reward, step.terminated, step.truncated) == (reward, terminated, truncated)
        if step.done:
            ends.append("terminated" if step.terminated else "truncated")
            assert abs(obs).max() <= 0.05 and state.time == 0
    assert {*ends} == {"terminated", "truncated"}


def test_unknown_names_and_options() -> None:
    with pytest.raises(ValueError, match=r"`Brekout-MinAtar`.*mean `Breakout-MinAtar`\?"):
        make("gymnax:Brekout-MinAtar")
    with pytest.raises(ValueError, match=r"`max_steps` of `gymnax:Breakout-MinAtar`.*_in_episode"):
        make("gymnax:Breakout-MinAtar", max_steps=3)


def test_other_spaces_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make("gymnax:CartPole-v1")
    space = gymnax.environments.spaces.Tuple([])
    monkeypatch.setattr(type(env.env), "action_space", lambda *_: space)
    with pytest.raises(ValueError, match=r"Box and Discrete of gymnax, found .*`hocket.envs.Env`"):
        _ = env.action_space


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnax", None)
    monkeypatch.delitem(sys.modules, "hocket.envs.adapters.gymnax")
    with pytest.raises(ImportError, match=r"pip install 'hocket\[gymnax\]'"):
        importlib.import_module("hocket.envs.adapters.gymnax")
