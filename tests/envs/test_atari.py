"""Atari games by Gymnasium's names: frames, ends of episodes, seeds and options."""

import pickle
from typing import Any

import numpy as np
import pytest

from hocket.core.program.describe import build, describe
from hocket.envs import Box, Discrete, HostEnv, make
from hocket.system.names import read_words

PONG = "gymnasium:ALE/Pong-v5"
SEEDS = np.array([3, 2**32 - 1], np.uint32)


def play(env: HostEnv, num_steps: int) -> tuple[Any, list[Any]]:
    live = env.open(2)
    first, steps = live.reset(SEEDS), []
    rng = np.random.default_rng(0)
    for _ in range(num_steps):
        live.send(rng.integers(0, 4, 2, np.int32))
        steps.append(live.recv())
    live.close()
    return first, steps


def test_spaces_are_those_of_the_usual_preprocessing() -> None:
    env = make(PONG)
    assert env.observation_space == Box(0, 255, (84, 84, 4), "uint8")
    assert env.action_space == Discrete(6)
    assert make(PONG, full_action_space=True).action_space == Discrete(18)
    assert make(PONG, img_height=42, stack_num=2).observation_space.shape == (42, 84, 2)


def test_episodes_end_with_their_last_frame_and_begin_again() -> None:
    first, steps = play(make(PONG, max_num_frames_per_episode=120), 100)
    before, ends = first, 0
    for step in steps:
        for i in range(2):
            # Each step adds one frame at the end of the stack, also at the end of an episode.
            np.testing.assert_array_equal(step.final_obs[i][..., :3], before[i][..., 1:])
            if step.truncated[i]:
                ends += 1
                assert (step.obs[i] != step.final_obs[i]).any()
            else:
                np.testing.assert_array_equal(step.obs[i], step.final_obs[i])
        before = step.obs
    assert ends >= 4
    assert not any(step.terminated.any() for step in steps)


def test_a_lost_life_ends_an_episode_if_it_shall() -> None:
    _, steps = play(make("gymnasium:ALE/Breakout-v5"), 100)
    lost = sum(int(step.terminated.sum()) for step in steps)
    _, steps = play(make("gymnasium:ALE/Breakout-v5", episodic_life=True), 100)
    assert sum(int(step.terminated.sum()) for step in steps) > lost


def test_seeds_settle_everything_and_results_stay_as_they_were() -> None:
    env = make(PONG, repeat_action_probability=0.25, workers=1)
    (first, once), (again, twice) = play(env, 60), play(env, 60)
    np.testing.assert_array_equal(first, again)
    for a, b in zip(once, twice, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)
    assert any((step.obs[0] != step.obs[1]).any() for step in once)


def test_names_and_options() -> None:
    env = make(PONG, reward_clipping=False)
    assert env.name == PONG and isinstance(env, HostEnv)
    assert env == pickle.loads(pickle.dumps(env)) == build(describe(env))
    assert hash(env) == hash(build(describe(env)))
    assert make(PONG).open(1).snapshot() is None
    name, options = read_words(f"{PONG}:noop_max=0,workers=2")
    assert make(name, **options).options == {"noop_max": 0}
    with pytest.raises(ValueError, match=r"`ALE/Pung-v5`.*mean `ALE/Pong-v5`"):
        make("gymnasium:ALE/Pung-v5")
    with pytest.raises(ValueError, match=r"`episodic_lif` of .*mean `episodic_life`"):
        make(PONG, episodic_lif=True)
    with pytest.raises(ValueError, match=r"`frameskip` of .*must be of type int \(such as 4"):
        make(PONG, frameskip="four")
