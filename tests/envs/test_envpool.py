"""EnvPool environments: every transition really happened, and final observations are right."""

import importlib
import pickle
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from hocket import iterate
from hocket.algorithms import PPO
from hocket.core.program.describe import build, describe
from hocket.envs import Box, Discrete, HostEnv, make
from hocket.envs.adapters.envpool import _LivePool

SEEDS = np.array([3, 2**32 - 1, 5, 9], np.uint32)


def play(env: HostEnv, num_steps: int, seeds: np.ndarray = SEEDS) -> tuple[Any, list[Any], Any]:
    """Return the first observations, all steps, and the actions."""
    live = env.open(len(seeds))
    first = live.reset(seeds)
    rng, steps, actions = np.random.default_rng(0), [], []
    for _ in range(num_steps):
        actions.append(rng.integers(0, 2, len(seeds), np.int32))
        live.send(actions[-1])
        steps.append(live.recv())
    live.close()
    return first, steps, actions


def test_every_transition_is_one_of_cartpole() -> None:
    """Compare with Gymnasium's physics, from each observation to the next, across episode ends."""
    env = make("envpool:CartPole-v1", max_episode_steps=30)
    obs, steps, actions = play(env, 300)
    hand: Any = gym.make("CartPole-v1").unwrapped
    hand.reset(seed=0)
    returns, lengths = np.zeros(4), np.zeros(4, int)
    ends = {"terminated": 0, "truncated": 0}
    for step, action in zip(steps, actions, strict=True):
        returns += step.reward
        lengths += 1
        for i in range(4):
            hand.state, hand.steps_beyond_terminated = obs[i].astype(np.float64), None
            expected, _, terminated, *_ = hand.step(int(action[i]))
            np.testing.assert_allclose(step.final_obs[i], expected, atol=1e-5)
            assert step.terminated[i] == terminated
            assert step.truncated[i] == (lengths[i] == 30 and not terminated)
            if step.terminated[i] or step.truncated[i]:
                ends["terminated" if terminated else "truncated"] += 1
                assert returns[i] == lengths[i]
                assert abs(step.obs[i]).max() <= 0.05
                returns[i] = lengths[i] = 0
            else:
                np.testing.assert_array_equal(step.obs[i], step.final_obs[i])
        obs = step.obs
    assert all(ends.values())


def test_seeds_settle_everything_and_results_stay_as_they_were() -> None:
    env = make("envpool:CartPole-v1")
    (first, once, _), (again, twice, _) = play(env, 80), play(env, 80)
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal([x.obs for x in once], [x.obs for x in twice])
    other, _, _ = play(env, 0, SEEDS + 1)
    assert (other != first).any()
    assert (first[0] != first[1]).any()


def test_atari_has_its_channels_last() -> None:
    env = make("envpool:Pong-v5", num_threads=1)
    assert env.observation_space == Box(0, 255, (84, 84, 4), "uint8")
    assert env.action_space == Discrete(6)
    first, steps, _ = play(env, 5, SEEDS[:2])
    assert first.shape == (2, 84, 84, 4) and first.dtype == np.uint8
    # Each step adds one frame at the end of the stack, and the earlier frames stay the same.
    for before, after in zip(
        [first, *(x.obs for x in steps)], [x.obs for x in steps], strict=False
    ):
        np.testing.assert_array_equal(after[..., :3], before[..., 1:])


def test_choices_are_one_hot_and_continuous_actions_go_through() -> None:
    first, _, _ = play(make("envpool:FrozenLake-v1"), 3)
    np.testing.assert_array_equal(first, np.eye(16, dtype=np.float32)[[0, 0, 0, 0]])
    live = make("envpool:Pendulum-v1").open(2)
    live.reset(SEEDS[:2])
    live.send(np.array([[1.0], [-1.0]], np.float32))
    assert live.recv().reward.dtype == np.float32
    live.close()


def test_names_and_options() -> None:
    env = make("envpool:CartPole-v1", num_threads=2, max_episode_steps=7)
    assert env.name == "envpool:CartPole-v1" and isinstance(env, HostEnv)
    assert env == pickle.loads(pickle.dumps(env)) == build(describe(env))
    assert hash(env) == hash(build(describe(env)))
    assert env.open(1).snapshot() is None
    with pytest.raises(ValueError, match=r"`CartPol-v1`.*mean `CartPole-v1`"):
        make("envpool:CartPol-v1")
    with pytest.raises(ValueError, match=r"`envpool:CartPole-v1` cannot be made with nonsense=3"):
        make("envpool:CartPole-v1", nonsense=3)
    with pytest.raises(ValueError, match="`seed` of `envpool:CartPole-v1` is set by hocket"):
        make("envpool:CartPole-v1", seed=3)


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    monkeypatch.delitem(sys.modules, "hocket.envs.adapters.envpool", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'hocket\[envpool\]'"):
        importlib.import_module("hocket.envs.adapters.envpool")


def test_steps_without_python_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the pool cannot be stepped natively, Python makes every call."""
    made: list[int] = []
    recv = _LivePool.recv
    monkeypatch.setattr(_LivePool, "recv", lambda pool: (made.append(1), recv(pool))[1])

    def metrics() -> tuple[dict[str, Any], int]:
        made.clear()
        env = make("envpool:CartPole-v1", num_threads=1, max_episode_steps=30)
        ppo = PPO(env=env, env_steps=8 * 64 * 4, num_envs=8, length=64, hidden=(8,))
        reports = iterate(ppo, distribute="sebulba:actors=1,threads=1", record=True)
        rows = [report.metrics for report in reports]
        return {k: np.concatenate([row[k] for row in rows]) for k in rows[0]}, len(made)

    fast, fewer = metrics()
    monkeypatch.setattr(_LivePool, "native", lambda *_: None)
    slow, calls = metrics()
    assert calls == 4 * 64
    assert 1 <= fewer < 0.75 * calls
    assert slow["episode_count"].sum() > 4 * 8
    for name in ("episode_return", "episode_length", "episode_count", "policy_loss", "kl"):
        np.testing.assert_array_equal(slow[name], fast[name])
