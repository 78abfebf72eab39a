"""How good a policy is: whole episodes in environments of their own."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from hocket.core.program.algorithm import Policy
from hocket.envs.env import Env
from hocket.envs.host import HostEnv
from hocket.envs.play.host_play import Act, batched, play


class Evaluation(NamedTuple):
    """What happened, for each episode `[episodes]`."""

    returns: Array
    lengths: Array
    ended: Array
    """Whether the episode ended; where not, it was cut off at `max_steps`."""


class _Episode(NamedTuple):
    state: Any
    obs: Any
    memory: Any
    key: Array
    ret: Array
    length: Array
    ended: Array


def evaluate(
    env: Env | HostEnv, policy: Policy, key: Array, *, episodes: int = 64, max_steps: int = 10_000
) -> Evaluation:
    """Play so many episodes side by side, each once, to its end. Pure: jit it.

    Every episode counts once, long or short: no average over whatever ended first.

        result = jax.jit(lambda state, key: evaluate(env, algorithm.policy(state), key))(state, key)

    Where the environment runs on the host it is an ordinary function, which cannot be jitted;
    `Evaluator` of `hocket.training.folder` is either, and compiles once.
    """
    if isinstance(env, HostEnv):
        return evaluate_on_host(
            env, batched(policy), policy.memory, key, episodes=episodes, max_steps=max_steps
        )

    def begin(key: Array) -> _Episode:
        k_reset, key = jax.random.split(key)
        state, obs = env.reset(k_reset)
        zero = jnp.zeros((), jnp.float32)
        return _Episode(state, obs, policy.memory, key, zero, jnp.int32(0), jnp.bool_(False))

    def step(episode: _Episode) -> _Episode:
        k_act, k_step, key = jax.random.split(episode.key, 3)
        action, memory = policy(episode.obs, episode.memory, k_act)
        state, step = env.step(episode.state, action, k_step)
        return _Episode(
            state, step.obs, memory, key, episode.ret + step.reward, episode.length + 1, step.done
        )

    def steps(at: tuple[Array, _Episode]) -> tuple[Array, _Episode]:
        count, before = at
        after = jax.vmap(step)(before)

        def keep_ended(new: Array, old: Array) -> Array:
            return jnp.where(before.ended.reshape(-1, *[1] * (new.ndim - 1)), old, new)

        return count + 1, jax.tree.map(keep_ended, after, before)

    def going(at: tuple[Array, _Episode]) -> Array:
        return (at[0] < max_steps) & ~at[1].ended.all()

    begun = jax.vmap(begin)(jax.random.split(key, episodes))
    _, last = lax.while_loop(going, steps, (jnp.int32(0), begun))
    return Evaluation(last.ret, last.length, last.ended)


def evaluate_on_host(
    env: HostEnv, act: Act, memory: Any, key: Array, *, episodes: int, max_steps: int = 10_000
) -> Evaluation:
    """`evaluate` for a policy that is compiled already: `act` is `host_play.batched` of it."""
    counted = play(env, act, memory, key, episodes=episodes, max_steps=max_steps)
    return Evaluation(*map(jnp.asarray, counted))
