"""Measuring how good a policy is, by whole episodes in separate environments."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from hocket.core.program.algorithm import Policy
from hocket.envs.env import Env
from hocket.envs.host import HostEnv
from hocket.envs.play.host_play import Act, batched, seeds, step_keys


class Evaluation(NamedTuple):
    """The results of all episodes, in arrays with one element for each, `[episodes]`."""

    returns: Array
    lengths: Array
    ended: Array
    """True if the episode ended, False if it was cut off after `max_steps`."""


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
    """Play `episodes` episodes side by side, each to its end or for `max_steps`. Pure, so jit it.

    Every episode counts once. An average over the first episodes to end would favor short ones.

        result = jax.jit(lambda state, key: evaluate(env, algorithm.policy(state), key))(state, key)

    For an environment on the host this is an ordinary function, which cannot be jitted. `Evaluator`
    of `hocket.training.load` takes both kinds of environments, and compiles once.
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
    """Evaluate a policy that is already compiled: `act` is what `host_play.batched` returned.

    `memory` is the policy's memory for one episode. An environment whose episode is over goes on
    with another episode, which does not count.
    """
    returns, lengths = np.zeros(episodes, np.float32), np.zeros(episodes, np.int32)
    ended = np.zeros(episodes, np.bool_)
    memory = jax.tree.map(lambda x: jnp.broadcast_to(x, (episodes, *jnp.shape(x))), memory)
    k_seed, k_act = jax.random.split(key)
    live = env.open(episodes)
    try:
        obs = live.reset(seeds(k_seed, episodes))
        for t in range(max_steps):
            action, memory = act(obs, memory, step_keys(k_act, t, episodes))
            live.send(jax.device_get(action))
            step = live.recv()
            obs = step.obs
            returns[~ended] += step.reward[~ended]
            lengths[~ended] += 1
            ended |= step.terminated | step.truncated
            if ended.all():
                break
    finally:
        live.close()
    return Evaluation(*map(jnp.asarray, (returns, lengths, ended)))
