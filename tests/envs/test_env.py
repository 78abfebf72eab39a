"""Episodes: the time limit, auto-reset with its final observation, and the statistics."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hocket.envs import Box, Discrete, EpisodeStats, Step, TimeLimit, auto_reset

KEY = jax.random.key(0)


@dataclass(frozen=True)
class Count:
    """Counts up from a random number below one and observes the count. Action 1 terminates."""

    @property
    def observation_space(self) -> Box:
        return Box(0.0, 100.0, shape=())

    @property
    def action_space(self) -> Discrete:
        return Discrete(2)

    def reset(self, key: Array) -> tuple[Array, Array]:
        start = jax.random.randint(key, (), 0, 10) / 10
        return start, start

    def step(self, state: Array, action: Array, key: Array) -> tuple[Array, Step]:
        state = state + 1
        return state, Step(state, jnp.float32(2.0), action == 1, jnp.bool_(False))


def test_the_limit_truncates() -> None:
    env = TimeLimit(Count(), max_steps=3)
    state, _ = env.reset(KEY)
    flags = []
    for _ in range(3):
        state, step = env.step(state, jnp.int32(0), KEY)
        flags.append((bool(step.terminated), bool(step.truncated)))
    assert flags == [(False, False), (False, False), (False, True)]


def test_termination_at_the_limit_is_no_truncation() -> None:
    env = TimeLimit(Count(), max_steps=1)
    _, step = env.step(env.reset(KEY)[0], jnp.int32(1), KEY)
    assert step.terminated and not step.truncated and step.done


def test_auto_reset_keeps_the_final_observation() -> None:
    env = TimeLimit(Count(), max_steps=3)
    advance = jax.jit(partial(auto_reset, env))
    state, obs = env.reset(KEY)
    for t, key in enumerate(jax.random.split(KEY, 12)):
        before = obs
        state, obs, step = advance(state, jnp.int32(0), key)
        assert step.obs == before + 1
        assert step.truncated == (t % 3 == 2)
        if step.done:
            assert obs < 1 and state.env == obs and state.steps == 0
        else:
            assert obs == step.obs


def test_new_episodes_differ_between_keys() -> None:
    env = TimeLimit(Count(), max_steps=1)
    state, _ = env.reset(KEY)
    keys = jax.random.split(KEY, 50)
    _, obs, _ = jax.vmap(lambda key: auto_reset(env, state, jnp.int32(0), key))(keys)
    assert len(np.unique(obs)) > 5


def test_auto_reset_gives_step_and_reset_different_keys() -> None:
    class Draw(Count):
        def reset(self, key: Array) -> tuple[Array, Array]:
            return jax.random.uniform(key), jax.random.uniform(key)

        def step(self, state: Array, action: Array, key: Array) -> tuple[Array, Step]:
            drawn = jax.random.uniform(key)
            return drawn, Step(drawn, jnp.float32(0.0), jnp.bool_(True), jnp.bool_(False))

    _, obs, step = auto_reset(Draw(), jnp.float32(0.0), jnp.int32(0), KEY)
    assert obs != step.obs


def test_statistics_count_ended_episodes_and_go_on_through_clear() -> None:
    def step(reward: float, done: bool) -> Step:
        return Step(None, jnp.float32(reward), jnp.bool_(False), jnp.bool_(done))

    stats = EpisodeStats.zeros()
    for reward, done in ((1.0, False), (2.0, True), (4.0, True), (8.0, False)):
        stats = stats.after(step(reward, done))
    assert (stats.ended_return, stats.ended_length, stats.ended) == (7.0, 3, 2)
    assert (stats.ret, stats.length) == (8.0, 1)
    stats = stats.clear().after(step(1.0, True))
    assert (stats.ended_return, stats.ended_length, stats.ended) == (9.0, 2, 1)


def test_statistics_keep_their_types_in_a_loop() -> None:
    env = TimeLimit(Count(), max_steps=4)

    def body(carry: tuple, key: Array) -> tuple[tuple, None]:
        state, stats = carry
        state, _, step = auto_reset(env, state, jnp.int32(0), key)
        return (state, stats.after(step)), None

    def run(key: Array) -> EpisodeStats:
        start = env.reset(key)[0], EpisodeStats.zeros()
        return jax.lax.scan(body, start, jax.random.split(key, 10))[0][1]

    stats = jax.vmap(run)(jax.random.split(KEY, 3))
    assert stats.ended.tolist() == [2, 2, 2] and stats.ended_return.tolist() == [16.0] * 3
    assert stats.length.tolist() == [2, 2, 2]
