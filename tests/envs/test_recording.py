"""Recording: every state of every episode is a frame, and returns add up the steps' rewards."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from hocket.core.program.algorithm import Policy
from hocket.envs import Box, Catch, Circle, Discrete, Picture, Step, TimeLimit, make, paint, record

KEY = jax.random.key(0)
SIZE = (60, 40)


def stay(obs: Array, memory: None, key: Array) -> tuple[Array, None]:
    return jnp.int32(1), None


def alternate(obs: Array, memory: Array, key: Array) -> tuple[Array, Array]:
    """A policy with a memory: it takes the action that it did not take last."""
    return memory, 1 - memory


class WalkState(NamedTuple):
    x: Array
    key: Array


@dataclass(frozen=True)
class Walk:
    """Moves right by the action, is rewarded by its position, ends at three, and keeps its key."""

    @property
    def observation_space(self) -> Box:
        return Box(0.0, 9.0, shape=(1,))

    @property
    def action_space(self) -> Discrete:
        return Discrete(2)

    def reset(self, key: Array) -> tuple[WalkState, Array]:
        return WalkState(jnp.float32(0), key), jnp.zeros(1)

    def step(self, state: WalkState, action: Array, key: Array) -> tuple[WalkState, Step]:
        x = state.x + action
        return WalkState(x, key), Step(x[None], x, x >= 3, jnp.bool_(False))

    def draw(self, state: Any) -> Picture:
        return Picture((-1, -1, 4, 1), [Circle((float(state.x), 0.0), 0.3)])


def test_frames_are_the_states_up_to_the_last() -> None:
    frames, returns = record(Walk(), Policy(stay), KEY, size=SIZE, caption=False)
    assert returns == [6.0]
    wanted = [paint(Walk().draw(WalkState(jnp.float32(x), KEY)), SIZE) for x in range(4)]
    np.testing.assert_array_equal(frames, np.stack(wanted))


def test_the_memory_begins_anew_and_is_handed_on() -> None:
    policy = Policy(alternate, memory=jnp.int32(0))
    frames, returns = record(Walk(), policy, KEY, episodes=2, size=SIZE)
    # Steps 0 1 0 1 0 1 lead to 0 1 1 2 2 3, twice.
    assert returns == [9.0, 9.0] and len(frames) == 14


def test_it_stops_at_the_limit() -> None:
    frames, returns = record(Walk(), Policy(stay), KEY, max_steps=2, size=SIZE)
    assert len(frames) == 3 and returns == [3.0]
    frames, returns = record(TimeLimit(Walk(), 1), Policy(stay), KEY, size=SIZE)
    assert len(frames) == 2 and returns == [1.0]


def test_episodes_differ_and_are_compiled_once() -> None:
    traced = []

    def count(obs: Array, memory: None, key: Array) -> tuple[Array, None]:
        traced.append(1)
        return jax.random.randint(key, (), 0, 3), None

    frames, returns = record(Catch(), Policy(count), KEY, episodes=6, size=SIZE)
    assert frames.shape == (60, 40, 60, 3) and set(returns) == {-1.0, 1.0}
    assert len(traced) == 1


def test_the_caption_changes_the_frames() -> None:
    plain, noted = (
        record(Walk(), Policy(stay), KEY, size=(240, 160), caption=c).frames for c in (False, True)
    )
    assert all((a != b).any() for a, b in zip(plain, noted, strict=True))


def test_grids_of_gymnax_are_recorded() -> None:
    env = make("gymnax:Breakout-MinAtar")
    frames, _ = record(env, Policy(stay), KEY, max_steps=4, size=SIZE)
    assert frames.shape == (5, 40, 60, 3) and (frames[1] != frames[3]).any()


def test_what_cannot_be_recorded_is_refused() -> None:
    with pytest.raises(ValueError, match="episodes=0"):
        record(Walk(), Policy(stay), KEY, episodes=0)
    with pytest.raises(ValueError, match=r"`GymnaxEnv` has no drawing"):
        record(make("gymnax:CartPole-v1"), Policy(stay), KEY)
